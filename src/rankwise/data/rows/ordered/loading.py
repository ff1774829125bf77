"""`OrderedLoader`: rows and an order to batches, on this rank and its device."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from rankwise.data.contract import Order, Source
from rankwise.data.feed import BatchTransform, FeedLoader, OnBadSample, Transform
from rankwise.data.feed.advice import warn_small_cache
from rankwise.data.feed.rank_place import find_place
from rankwise.data.rows.binding import bound_rows
from rankwise.data.rows.source import RowSource

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World

__all__ = ["OrderedLoader"]


class OrderedLoader(FeedLoader):
    """A `FeedLoader` of rows that takes rank, world size and device from the world.

    ``batch["X"]`` is a ``torch.sparse_csr`` tensor where rows are sparse, SciPy's ``csr_matrix`` with ``device=None``;
    it lies in the loader's memory until the next step, like every field. With JAX it is a ``BCSR`` matrix, with as many
    stored elements as a few sizes allow, and all fields have memory of their own.

    Args:
        rows: the rows.
        order: which rows form which step, and whether they are drawn; its batch size is that of all ranks together.
        micro_batch: most rows of this rank in one batch; None = its whole share at once.
        device: "auto" = the world's device, any torch device, or None for NumPy and SciPy; ``"jax"`` or a
            ``jax.sharding.Sharding`` as `FeedLoader` says.
        world: the world; None = `World.current()`.
        depth: steps that may lie ready; 0 reads in the calling thread.
        transform: ``transform(fields, key) -> fields`` for one row as NumPy arrays, on the reader thread; rows must be
            dense for it.
        batch_transform: ``batch_transform(fields, keys) -> fields`` for a whole batch, on the device.
        fields: the fields to read; None = all.
        on_bad_sample: "raise", or how many damaged rows this rank may leave out; see `FeedLoader`.

    Raises:
        ConfigError: an argument is out of range, or there is no such field.
        MissingExtraError: torch is needed and not installed.
    """

    def __init__(
        self,
        rows: RowSource,
        *,
        order: Order,
        micro_batch: int | None = None,
        device: str | torch.device | jax.sharding.Sharding | None = "auto",
        world: World | None = None,
        depth: int = 2,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        fields: Sequence[str] | None = None,
        on_bad_sample: OnBadSample = "raise",
    ) -> None:
        place = find_place(world, device)
        rows = bound_rows(rows, order)
        source = cast("Source", rows)
        warn_small_cache(source, order, rank=place.rank, world_size=place.world_size)
        super().__init__(
            source,
            order,
            rank=place.rank,
            world_size=place.world_size,
            micro_batch=micro_batch,
            device=place.device,
            depth=depth,
            transform=transform,
            batch_transform=batch_transform,
            fields=fields,
            on_bad_sample=on_bad_sample,
        )
        self._held = rows

    def close(self) -> None:
        """Close files and threads, and say how many rows were left out. Calling it twice is fine."""
        self.say_skipped()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
