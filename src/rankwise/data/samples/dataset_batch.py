"""One micro-batch out of a map-style dataset, and the nested tensors that a collate function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from rankwise.data.contract import Share
from rankwise.data.feed import ShareView
from rankwise.errors import ConfigError


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with its leaves replaced; dicts, lists, tuples and named tuples keep their type."""
    if isinstance(tree, (Mapping, list, tuple)):
        return _children(tree, lambda value: map_tree(function, value))
    return function(tree)


def move_tree(tree: Any, device: Any, *, non_blocking: bool) -> Any:
    """Return `tree` with everything that has ``.to`` (tensors, and batches of other libraries) on `device`."""
    return map_tree(lambda leaf: leaf.to(device, non_blocking=non_blocking) if hasattr(leaf, "to") else leaf, tree)


def first_twice(tree: Any) -> Any:
    """Return a collated batch of its first sample twice; the batch itself if samples cannot be told apart.

    The batch axis is the first one of every tensor and array, and the items of a list of texts. If these differ in
    length (for example concatenated documents beside their lengths), a row is not a sample.
    """
    try:
        no_rows(tree)
    except ConfigError:
        return tree
    return _doubled(tree) if len(set(_num_rows(tree))) <= 1 else tree


def _num_rows(tree: Any) -> Iterator[int]:
    """Yield the number of rows of each leaf."""
    if isinstance(tree, (Mapping, list, tuple)) and not _are_texts(tree):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _num_rows(value)
    elif tree is not None:
        yield len(tree)


def _are_texts(tree: Any) -> bool:
    """Whether it holds a text of each sample: a list, or from samples that are tuples, a tuple."""
    several = isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields")
    return several and bool(tree) and all(isinstance(value, (str, bytes)) for value in tree)


def _doubled(tree: Any) -> Any:
    if _are_texts(tree):
        return tree[:1] * 2
    if isinstance(tree, (Mapping, list, tuple)):
        return _children(tree, _doubled)
    return None if tree is None else tree[[0, 0]]


def no_rows(tree: Any) -> Any:
    """Return a collated batch cut to zero samples: each tensor or array ``[:0]``, each list of texts empty.

    Raises:
        ConfigError: it contains something with an unknown batch axis.
    """
    if _are_texts(tree):
        return tree[:0]
    if isinstance(tree, (Mapping, list, tuple)):
        return _children(tree, no_rows)
    if tree is None or (hasattr(tree, "ndim") and tree.ndim > 0):
        return None if tree is None else tree[:0]
    raise ConfigError(
        f"this rank has no sample in this step, and the collated batch holds a {type(tree).__name__}, from which zero "
        'samples cannot be cut: let collate_fn return tensors with a batch axis, or use remainder="drop" or a larger '
        "batch_size so that every rank has samples"
    )


def _children(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        made = {name: function(value) for name, value in tree.items()}
        try:
            return type(tree)(made)  # type: ignore[call-arg]
        except TypeError:  # a defaultdict begins with its default
            return tree | made if isinstance(tree, dict) else made
    if hasattr(tree, "_fields"):
        return type(tree)(*(function(value) for value in tree))
    return type(tree)([function(value) for value in tree])


class DatasetBatch(ShareView):
    """Implements `Batch`. It owns its memory and stays valid after its step.

    Attributes:
        data: what ``collate_fn`` returned, on the device.
        loader: a weak reference to its loader; None if it has none. A dataset has no fingerprint of its content, so
            the check that ranks have equal data asks the loader.
    """

    def __init__(self, share: Share, data: Any, *, uncut: Any = None, loader: Any = None) -> None:
        super().__init__(share)
        self.data = data
        self.loader = loader
        # the real sample that an empty batch was cut from, for `placeholder`
        self._uncut = data if uncut is None else uncut

    def __repr__(self) -> str:
        return self._described(type(self.data).__name__)

    def __getitem__(self, field: str | int) -> Any:
        """Return ``data[field]``: a key of a dict, or an index of a tuple or list.

        Raises:
            KeyError: there is no such field; the message lists those that exist.
        """
        data = self.data
        if isinstance(data, Mapping) and field in data:
            return data[field]
        if isinstance(data, (tuple, list)) and isinstance(field, int) and -len(data) <= field < len(data):
            return data[field]
        if isinstance(data, Mapping):
            has = f"a dict with {', '.join(map(repr, data))}"
        elif isinstance(data, (tuple, list)):
            has = f"a {type(data).__name__} of {len(data)}: use batch[0] to batch[{len(data) - 1}]"
        else:
            has = f"one {type(data).__name__}: use batch.data"
        raise KeyError(f"the batch has no field {field!r}; collate_fn returned {has}")

    def stand_in(self) -> DatasetBatch:
        """Return a batch of two samples that owns its memory: the first one twice; an empty batch also has real data.

        If the samples of a batch cannot be told apart, it is the whole batch with all its samples.
        """
        data, ids = first_twice(self._uncut), self.ids if len(self.ids) else self.share.step.ids[:1]
        ids = ids if data is self._uncut else np.resize(ids, 2)
        share = replace(self.share, micro=0, num_micro=1, positions=ids, ids=ids, weights=None)
        return DatasetBatch(share, data)

    def release(self, event: Any = None) -> None:
        """Do nothing: the memory is not reused."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
