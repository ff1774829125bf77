"""Randomness inside a dataset that belongs to the sample, not to the worker or the rank that happens to fetch it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from rankwise.errors import ConfigError

__all__ = ["KeyedDataset", "first_of", "sample_key"]

_KEY: ContextVar[int] = ContextVar("rankwise_sample_key")


def sample_key() -> int:
    """Return the key of the sample that is being fetched: f(seed, epoch, sample), any int64.

    For use inside a dataset's ``__getitem__`` under a `DatasetLoader`, for example
    ``numpy.random.default_rng(sample_key() & (2**63 - 1))``. The same at any world size, number of workers and after
    any restart; another one in the next epoch.

    Raises:
        ConfigError: no sample is being fetched by a `DatasetLoader`, one by one.
    """
    try:
        return _KEY.get()
    except LookupError:
        raise ConfigError(
            "sample_key() has an answer only inside a dataset's __getitem__, under a DatasetLoader (for a dataset with "
            "__getitems__ give it reseed=True, which fetches one by one)"
        ) from None


class KeyedDataset:
    """A map-style dataset asked for ``(sample, key)`` pairs; runs in the loader's worker or in its own process.

    Args:
        dataset: the user's dataset.
        reseed: before each sample, seed the global generators of `random`, NumPy and torch (CPU) with its key, and
            give them back as they were afterwards; fetches one by one. False leaves them alone.
    """

    def __init__(self, dataset: Any, *, reseed: bool) -> None:
        self.dataset = dataset
        self.reseed = reseed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, pair: tuple[int, int]) -> Any:
        return self.__getitems__([pair])[0]

    def __getitems__(self, pairs: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Fetch samples; torch's DataLoader calls this with all that form a batch."""
        if not self.reseed and hasattr(self.dataset, "__getitems__"):
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
        # not torch.manual_seed, which would seed the accelerators too, and the model draws from those
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
    """Give the global CPU generators back as they were: without workers they are the training process's own."""
    import torch

    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.default_generator.set_state(states[2])


def first_of(dataset: Any) -> Any:
    """Return sample 0, of a copy: what a dataset opens when it is first read must not travel to its workers."""
    return _copied(dataset)[0]


def _copied(dataset: Any) -> Any:
    """Return a shallow copy, of the datasets inside it too: their data are shared, their attributes are not."""
    from torch.utils.data import Dataset

    made = copy.copy(dataset)
    for name, value in list(getattr(made, "__dict__", {}).items()):
        if isinstance(value, Dataset):
            setattr(made, name, _copied(value))
        elif isinstance(value, list) and any(isinstance(item, Dataset) for item in value):
            setattr(made, name, [_copied(item) if isinstance(item, Dataset) else item for item in value])
    return made
