"""Tensors distributed over ranks: the piece of a rank, and the whole or any box of it from all files."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.errors import CheckpointError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Piece:
    """One rank's part of a value: a box of a tensor, or all of a value that is on this rank alone.

    Attributes:
        shape: of the whole tensor; () for a value that is not a tensor.
        start: start of the box.
        data: its elements, or the value.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    data: Any


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tensor in the files of a checkpoint, copied from there on demand.

    Attributes:
        shape: of the whole tensor.
        pieces: disjoint boxes.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Pieces:
        """Return a whole tensor as a single piece."""
        shape = tuple(tensor.shape)
        return cls(shape, (Piece(shape, (0,) * len(shape), tensor),))

    def box(self, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        """Return a new tensor [*size] of the elements from `start` on.

        Raises:
            CheckpointError: the pieces do not cover it.
        """
        import torch

        box = torch.empty(tuple(size), dtype=self.pieces[0].data.dtype)
        covered = 0
        for piece in self.pieces:
            ends = (
                zip(start, size, strict=True),
                zip(piece.start, piece.data.shape, strict=True),
            )
            spans = [
                (max(low, other), min(low + length, other + its))
                for (low, length), (other, its) in zip(*ends, strict=True)
            ]
            if any(low >= high for low, high in spans):
                continue
            into = tuple(slice(low - at, high - at) for (low, high), at in zip(spans, start, strict=True))
            out_of = tuple(slice(low - at, high - at) for (low, high), at in zip(spans, piece.start, strict=True))
            box[into] = piece.data[out_of]
            covered += math.prod(high - low for low, high in spans)
        if covered != box.numel():
            raise CheckpointError(
                f"the ranks' pieces cover {covered} of {box.numel()} elements of a tensor {self.shape}"
            )
        return box

    def whole(self) -> torch.Tensor:
        """Return the whole tensor; errors as in `box`."""
        return self.box((0,) * len(self.shape), self.shape)


def only_pieces(tree: Any) -> Any:
    """Return the part of a tree that ranks except the main one write: the pieces; the rest is equal on all ranks."""
    if not isinstance(tree, Mapping):
        return {}
    found = {key: value if isinstance(value, Piece) else only_pieces(value) for key, value in tree.items()}
    return {key: value for key, value in found.items() if isinstance(value, Piece) or value}


def join_ranks(trees: Sequence[Any]) -> Any:
    """Return the tree that the files of all ranks form together, with `Pieces` for distributed tensors."""
    first = trees[0]
    if isinstance(first, Piece):
        if not hasattr(first.data, "shape"):
            return first.data
        return Pieces(first.shape, tuple(trees))
    if not isinstance(first, Mapping):
        return first
    keys = dict.fromkeys(key for tree in trees for key in tree)
    items = [(key, join_ranks([tree[key] for tree in trees if key in tree])) for key in keys]
    return mapping_like(first, items)


def whole_tree(tree: Any) -> Any:
    """Return a tree from `join_ranks` with whole tensors."""
    if isinstance(tree, Pieces):
        return tree.whole()
    if not isinstance(tree, Mapping):
        return tree
    items = [(key, whole_tree(value)) for key, value in tree.items()]
    return mapping_like(tree, items)


def mapping_like(model: Mapping[Any, Any], items: list[tuple[Any, Any]]) -> Any:
    """Return a mapping of the model's kind: OrderedDict (with a module's version metadata), Counter, otherwise dict."""
    if isinstance(model, Counter):
        return Counter(dict(items))
    if not isinstance(model, OrderedDict):
        return dict(items)
    result: Any = OrderedDict(items)
    versions = getattr(model, "_metadata", None)
    if isinstance(versions, Mapping):
        result._metadata = OrderedDict((key, dict(value)) for key, value in versions.items())  # noqa: SLF001
    return result
