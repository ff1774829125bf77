"""Our public loaders, reading whole epochs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from _rows.readers import Reader
from _rows.task import Task


class _Loading(Reader):
    """A loader that can begin early."""

    _loader: Any

    def begin_early(self, number: int) -> None:
        """Begin to read an epoch in the background."""
        self._loader.set_epoch(number)
        if not self._loader.start_prefetch():
            raise RuntimeError("the loader does not begin early")


class Requests(_Loading):
    """`Loader`, with the arguments that annbatch's gets."""

    def __init__(self, task: Task) -> None:
        import anndata
        import zarr

        from rankwise.data.rows import Loader

        warnings.simplefilter("ignore")  # of anndata, about coming defaults
        group = zarr.open_group(task.store, mode="r")
        self._loader = Loader(**task.sampler_arguments(), rng=0, to=None)
        self._loader.add_dataset(anndata.io.sparse_dataset(group["X"]) if task.sparse else group["X"])

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for number in _told(self._loader, numbers):
            self._loader.set_epoch(number)
            for batch in self._loader:
                yield batch["X"]


class Ordered(_Loading):
    """`OrderedLoader` over an `Order` with the same batch size; what was left in the cache goes beforehand."""

    def __init__(self, task: Task, output: str = "rows") -> None:
        from rankwise import Order
        from rankwise.data.rows import OrderedLoader, RowSource

        cache = {} if task.cache_bytes is None else {"cache": task.cache_bytes}
        genes = {"genes": task.columns(), "dense": True} if output == "genes" else {}
        self._rows = RowSource(task.store, threads=task.threads, **cache, **genes)
        self._loader = OrderedLoader(self._rows, order=Order(self._rows, batch_size=task.batch), device=None)

    def prepare(self, numbers: Iterable[int]) -> None:
        """Empty the cache: this store is small enough that an epoch would find much of the last one in it."""
        del numbers
        self._rows.cache.renew()

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for number in _told(self._loader, numbers):
            self._loader.set_epoch(number)
            for micro_batches in self._loader:
                for batch in micro_batches:
                    yield batch["X"]

    def close(self) -> None:
        """Close files and threads."""
        self._loader.close()


def _told(loader: Any, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers of epochs; the loader is told of the last one, so that it reads nothing beyond what counts."""
    *others, last = numbers
    yield from others
    loader.expect_last_epoch()
    yield last
