"""Datasets of users; only this module probes their members. Random numbers depend on the sample, not the worker."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from rankwise.data.feed import other_way
from rankwise.errors import ConfigError

_KEY: ContextVar[int] = ContextVar("rankwise_sample_key")


def sample_key() -> int:
    """Return the key of the sample that is being fetched: f(seed, epoch, sample), any int64.

    Call it in a dataset's ``__getitem__`` under a `DatasetLoader`, for example
    ``numpy.random.default_rng(sample_key() & (2**63 - 1))``. The key is the same at any world size, for any number of
    workers and after any restart; it differs in the next epoch.

    Raises:
        ConfigError: no `DatasetLoader` is fetching a single sample now.
    """
    try:
        return _KEY.get()
    except LookupError:
        raise ConfigError(
            "sample_key() only works inside a dataset's __getitem__, under a DatasetLoader (for a dataset with "
            "__getitems__ pass reseed=True, which fetches one by one)"
        ) from None


class KeyedDataset:
    """A map-style dataset indexed by ``(sample, key)`` pairs; runs in the loader's workers or in its own process.

    Args:
        dataset: the user's dataset.
        reseed: before each sample, seed the global generators of `random`, NumPy and torch (CPU) with its key, and
            restore them afterwards; fetches samples one by one. False leaves them alone; None = True, except
            for a dataset with ``__getitems__``, which fetches whole batches.

    Attributes:
        fingerprint: of the dataset, if it has one.
    """

    def __init__(self, dataset: Any, *, reseed: bool | None) -> None:
        self.dataset = dataset
        self.fingerprint: str | None = getattr(dataset, "fingerprint", None)
        self._at_once = _fetches_at_once(dataset)
        self.reseed = not self._at_once if reseed is None else reseed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, pair: tuple[int, int]) -> Any:
        return self.__getitems__([pair])[0]

    def __getitems__(self, pairs: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Fetch samples; torch's DataLoader calls this with all samples of a batch."""
        if not self.reseed and self._at_once:
            fetched: Sequence[Any] = self.dataset.__getitems__([sample for sample, _ in pairs])
            return fetched
        if not self.reseed:
            return [self._one(sample, key) for sample, key in pairs]
        with _generators_kept():
            return [self._seeded(sample, key) for sample, key in pairs]

    def _seeded(self, sample: int, key: int) -> Any:
        import torch

        unsigned = key & (2**64 - 1)
        random.seed(unsigned)
        np.random.seed([unsigned >> 32, unsigned & (2**32 - 1)])  # noqa: NPY002  (the generator that datasets use)
        # not torch.manual_seed, which also seeds accelerators, and the model draws from those
        torch.default_generator.manual_seed(unsigned & (2**63 - 1))
        return self._one(sample, key)

    def _one(self, sample: int, key: int) -> Any:
        token = _KEY.set(key)
        try:
            return self.dataset[sample]
        except Exception as error:
            error.add_note(f"while fetching sample {sample} (key {key}) of {type(self.dataset).__name__}")
            raise
        finally:
            _KEY.reset(token)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the global CPU generators: without workers they belong to the training process."""
    import torch

    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.default_generator.set_state(states[2])


# They have __len__ and __getitem__, but do not index samples by number.
_BY_NAME = {
    "h5py.Group", "pandas.DataFrame", "polars.DataFrame", "pyarrow.Table", "scipy.sparray", "scipy.spmatrix",
    "torch.IterableDataset", "xarray.DataArray", "xarray.Dataset",
}  # fmt: skip


def layers(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, and those inside torch's wrappers (Subset, ConcatDataset): workers import all their classes."""
    yield dataset
    for inner in _wrapped(dataset):
        yield from layers(inner)


def _wrapped(dataset: Any) -> list[Any]:
    """Return the datasets inside one of torch's wrappers; none for other datasets."""
    if not type(dataset).__module__.startswith("torch."):
        return []
    several = getattr(dataset, "datasets", [dataset.dataset] if hasattr(dataset, "dataset") else [])
    return list(several.values() if isinstance(several, Mapping) else several)


def _fetches_at_once(dataset: Any) -> bool:
    """Whether it has ``__getitems__``. Subset and StackDataset always have it: then their datasets decide."""
    inner = _wrapped(dataset)
    return hasattr(dataset, "__getitems__") and (not inner or any(map(_fetches_at_once, inner)))


def check_dataset(dataset: Any, *, num_workers: int, prefetch_factor: int | None) -> None:
    """Refuse an object that is not a map-style dataset or cannot be sent to workers; raises ConfigError."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(dataset).__mro__}
    no_numbers = isinstance(dataset, (str, bytes)) or bool(kinds & _BY_NAME)
    if no_numbers or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            "a DatasetLoader accepts only map-style datasets (with __getitem__ and __len__), "
            f"{type(dataset).__module__}.{type(dataset).__name__} is not one: {other_way(dataset)}"
        )
    if num_workers and "h5py.Dataset" in kinds:
        raise ConfigError(
            "an open HDF5 file cannot be sent to workers: write a Dataset that opens it in each of them "
            "(docs/samples.md has the recipe), and pass that to the DatasetLoader, or use num_workers=0"
        )
    if num_workers < 0:
        raise ConfigError(f"num_workers must be >= 0, got {num_workers}")
    if prefetch_factor is not None and num_workers == 0:
        raise ConfigError("prefetch_factor needs workers: pass num_workers >= 1 too, or remove it")
