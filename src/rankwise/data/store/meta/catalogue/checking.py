"""Is a catalogue still true? Look at the documents that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rankwise.data.store.meta.catalogue.recording import record_of, stamps_of
from rankwise.data.store.meta.catalogue.table import Table
from rankwise.data.store.meta.nodes import Node, read_node
from rankwise.errors import DataError

__all__ = ["check_stores"]

_BATCH = 256  # places for one task of a thread


def check_stores(table: Table, node_at: Callable[[str], Node | None], *, workers: int) -> None:
    """Compare every document with what a catalogue holds; see `Catalogue.check`.

    Args:
        table: the catalogue.
        node_at: what the catalogue says is at a place.
        workers: threads.

    Raises:
        DataError: some have changed or are gone.
    """

    def changed(rows: range) -> list[str]:
        return [table.places[row] for row in rows if _has_changed(table, row, node_at)]

    batches = [range(first, min(first + _BATCH, len(table.places))) for first in range(0, len(table.places), _BATCH)]
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        found = [place for batch in pool.map(changed, batches) for place in batch]
    if found:
        others = f" and {len(found) - 1} others" if len(found) > 1 else ""
        raise DataError(
            f"the metadata of {found[0]}{others} changed after the catalogue was made, or are gone: "
            "make it again with rankwise data index"
        )


def _has_changed(table: Table, row: int, node_at: Callable[[str], Node | None]) -> bool:
    place, kind = table.places[row], table.kinds[row]
    if "://" not in place:
        return stamps_of(place, kind[:-1], int(kind[-1])) != tuple(table.stamps[row].tolist())
    now, then = read_node(place), node_at(place)
    return now is None or then is None or record_of(now) != record_of(then)
