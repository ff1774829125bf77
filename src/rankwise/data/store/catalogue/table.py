"""The columns of a catalogue and their file format; how nodes are recorded, and checked for changes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.files.handles import local_identity
from rankwise.data.store.meta.nodes import Node, read_node
from rankwise.data.store.meta.parser import array_of
from rankwise.data.store.meta.tree import Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.discovery import ImageRef
from rankwise.errors import DataError

_MAGIC = b"rankwise catalogue\n"
_VERSION = 1
_REF = ("place", "kind", "name", "plate", "well", "field", "acquisition")  # what is stored of an `ImageRef`


class Recorded(NamedTuple):
    """One recorded node.

    Attributes:
        kind: "array" or "group".
        zarr_format: 2 or 3.
        document: its document as JSON, without attributes.
        attributes: its attributes as JSON; None if it has none.
        stamps: size and modification time (ns) of its document, then of its .zattrs; -1 if it does not exist.
    """

    kind: str
    zarr_format: int
    document: str
    attributes: str | None
    stamps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A catalogue stored by columns.

    Attributes:
        roots: the URIs that were searched.
        bad: places that could not be read, with the reason.
        places: absolute path or URL of each node.
        kinds: "array" or "group" and the version for each node, for example "array3".
        documents: int64[N], index of the node's document in `texts`.
        attributes: int64[N], index of its attributes in `texts`; -1 = none.
        stamps: int64[N, 4], see `Recorded`.
        texts: the distinct JSON texts.
        refs: the images, in the order of the search.
    """

    roots: list[str]
    bad: list[tuple[str, str]]
    places: list[str]
    kinds: list[str]
    documents: IntArray
    attributes: IntArray
    stamps: IntArray
    texts: list[str]
    refs: list[ImageRef]

    @classmethod
    def build(cls, roots: list[str], bad: dict[str, str], nodes: dict[str, Recorded], refs: list[ImageRef]) -> Table:
        """Return the columns for recorded nodes and images."""
        texts: dict[str, int] = {}

        def number(text: str | None) -> int:
            return -1 if text is None else texts.setdefault(text, len(texts))

        rows = sorted(nodes.items())
        return cls(
            roots=roots,
            bad=sorted(bad.items()),
            places=[place for place, _ in rows],
            kinds=[f"{node.kind}{node.zarr_format}" for _, node in rows],
            documents=np.array([number(node.document) for _, node in rows], dtype=np.int64),
            attributes=np.array([number(node.attributes) for _, node in rows], dtype=np.int64),
            stamps=np.array([node.stamps for _, node in rows], dtype=np.int64).reshape(len(rows), 4),
            texts=list(texts),
            refs=refs,
        )


def pack_table(table: Table) -> bytes:
    """Return a table as bytes: version, checksum, and everything else compressed."""
    words = {
        "roots": table.roots,
        "bad": table.bad,
        "places": table.places,
        "kinds": table.kinds,
        "texts": table.texts,
        "refs": [[getattr(ref, name) for ref in table.refs] for name in _REF if table.refs],
    }
    head = json.dumps(words, separators=(",", ":")).encode()
    numbers = np.concatenate([table.documents, table.attributes, table.stamps.ravel()]).astype("<i8")
    payload = zlib.compress(len(head).to_bytes(8, "little") + head + numbers.tobytes(), level=3)
    return _MAGIC + _VERSION.to_bytes(4, "little") + hashlib.sha256(payload).digest() + payload


def unpack_table(packed: bytes, place: str) -> Table:
    """Return a table from its bytes.

    Args:
        packed: from `pack_table`.
        place: their origin, for messages.

    Raises:
        DataError: they are not a catalogue, have another version, or are damaged.
    """
    head, payload = packed[: len(_MAGIC) + 36], packed[len(_MAGIC) + 36 :]
    if not head.startswith(_MAGIC):
        zipped = "; a store in a ZIP file is not supported: unpack it" * packed.startswith(b"PK")
        raise DataError(
            f"{place} is not a rankwise catalogue; create one with: rankwise data index URI... -o FILE{zipped}"
        )
    version = int.from_bytes(head[len(_MAGIC) : len(_MAGIC) + 4], "little")
    if version != _VERSION:
        raise DataError(f"the catalogue {place} has version {version}, this rankwise reads {_VERSION}; create it again")
    if hashlib.sha256(payload).digest() != head[len(_MAGIC) + 4 :]:
        raise DataError(f"the catalogue {place} does not match its checksum: truncated or damaged; create it again")
    return _table(zlib.decompress(payload))


def _table(plain: bytes) -> Table:
    stop = 8 + int.from_bytes(plain[:8], "little")
    words: dict[str, Any] = json.loads(plain[8:stop])
    count = len(words["places"])
    numbers = np.frombuffer(plain, dtype="<i8", offset=stop).astype(np.int64)
    return Table(
        roots=words["roots"],
        bad=[(place, reason) for place, reason in words["bad"]],
        places=words["places"],
        kinds=words["kinds"],
        documents=numbers[:count],
        attributes=numbers[count : 2 * count],
        stamps=numbers[2 * count :].reshape(count, 4),
        texts=words["texts"],
        refs=[ImageRef(**dict(zip(_REF, row, strict=True))) for row in zip(*words["refs"], strict=True)],
    )


_NOT_KEPT = {"attributes", "consolidated_metadata"}  # stored separately; replaced by the catalogue


class RecordingNodes:
    """`Nodes` that look nodes up in others, and record each that was found; thread-safe."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.found: dict[str, Recorded] = {}

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place."""
        node = self._nodes.node(place)
        if node is not None:
            self._remember(node)
        return node

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents; forget an array that cannot be read."""
        try:
            return array_of(node)
        except DataError:
            self.found.pop(node.place, None)
            raise

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place, with their nodes if already known."""
        inside = self._nodes.inside(place, group)
        for node in inside.values():
            if node is not None:
                self._remember(node)
        return inside

    def missing(self, place: str) -> DataError:
        """Return the error that says what is at a place instead of a node."""
        return self._nodes.missing(place)

    def _remember(self, node: Node) -> None:
        if node.place not in self.found:
            self.found[node.place] = record_of(node)


def record_of(node: Node) -> Recorded:
    """Return the record of a node."""
    attributes = node.document.get("attributes", ...) if node.zarr_format == 3 else node.attributes
    return Recorded(
        kind=node.kind,
        zarr_format=node.zarr_format,
        document=_text({key: value for key, value in node.document.items() if key not in _NOT_KEPT}),
        attributes=None if attributes is ... else _text(attributes),
        stamps=stamps_of(node.place, node.kind, node.zarr_format),
    )


def stamps_of(place: str, kind: str, zarr_format: int) -> tuple[int, ...]:
    """Return size and modification time of a node's document and of its .zattrs; -1 if it does not exist."""
    if "://" in place:
        return -1, -1, -1, -1
    first = local_identity(f"{place}/{'zarr.json' if zarr_format == 3 else f'.z{kind}'}")
    second = local_identity(f"{place}/.zattrs") if zarr_format == 2 else ()
    return (*(first[2:] or (-1, -1)), *(second[2:] or (-1, -1)))


def _text(value: Mapping[str, Any] | None) -> str:
    return json.dumps(value, separators=(",", ":"))


def has_changed(table: Table, row: int, node_at: Callable[[str], Node | None]) -> bool:
    """Whether the documents of a node are not those that were recorded; `node_at` returns the recorded node."""
    place, kind = table.places[row], table.kinds[row]
    if "://" not in place:
        return stamps_of(place, kind[:-1], int(kind[-1])) != tuple(table.stamps[row].tolist())
    now, then = read_node(place), node_at(place)
    return now is None or then is None or record_of(now) != record_of(then)
