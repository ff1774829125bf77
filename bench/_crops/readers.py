"""The compared readers. Each fills batches of a `Task` in its own process."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from _crops.task import Task

ENVIRONMENT = {"fallback": {"RANKWISE_DECODER": "threads"}}
NEEDS = {"zarrs": "zarrs", "tensorstore": "tensorstore", "dataloader": "torch"}
TITLES = {
    "floor": "floor: decode and cast only",
    "ours": "rankwise, kernel",
    "fallback": "rankwise, threads + numcodecs",
    "zarr": "zarr-python",
    "zarrs": "zarr-python + zarrs",
    "tensorstore": "tensorstore",
    "dataloader": "DataLoader workers, zarr-python",
}


def missing(name: str) -> str | None:
    """Return the package that a reader lacks here, None if it can run."""
    package = NEEDS.get(name)
    return None if package is None or importlib.util.find_spec(package) else package


class Reader(ABC):
    """Fills batches one after the other; `children` are processes that work for it."""

    children: tuple[int, ...] = ()

    def prepare(self, numbers: Iterable[int]) -> None:  # noqa: B027  (most have nothing to do)
        """Do what does not count, before the clock starts; nothing unless a reader says otherwise."""

    @abstractmethod
    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield the batches of these numbers; each may be overwritten by the next."""

    def close(self) -> None:  # noqa: B027
        """Give processes and threads back; nothing unless a reader says otherwise."""


class Rankwise(Reader):
    """Our engine, without a cache of decoded chunks."""

    def __init__(self, task: Task) -> None:
        from rankwise.data.store import BoxReader, read_meta

        self._task = task
        self._metas = tuple(read_meta(path) for path in task.arrays)
        self._reader = BoxReader(cache=0, threads=task.threads)
        self._out = task.empty()

    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield batches; the next one is hinted before one is read."""
        plans = self.plans(numbers)
        plan = next(plans, None)
        while plan is not None:
            coming = next(plans, None)
            if coming is not None:
                self._reader.hint([coming])
            [report] = self._reader.read([(plan, self._out)])
            if not report.valid.all():
                raise report.errors[0].error
            yield self._out
            plan = coming

    def plans(self, numbers: Iterable[int]) -> Iterator:
        """Yield the plans of batches."""
        from rankwise.data.store import BoxRequest

        task = self._task
        for number in numbers:
            crops = task.crops(number)
            yield self._reader.plan(
                BoxRequest(
                    arrays=self._metas,
                    which=crops.which,
                    starts=crops.starts,
                    shape=task.crop,
                    dtype=np.dtype(task.dtype),
                )
            )

    def close(self) -> None:
        """Close files and threads."""
        self._reader.close()


class ZarrPython(Reader):
    """zarr-python, crop by crop; with `zarrs` its codec pipeline is the one of zarrs."""

    def __init__(self, task: Task, *, zarrs: bool = False) -> None:
        import zarr

        if zarrs:
            zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        self._task = task
        self._arrays = [zarr.open_array(path, mode="r") for path in task.arrays]
        self._out = task.empty()

    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield batches."""
        for number in numbers:
            for row, (array, box) in enumerate(self._task.selections(number)):
                self._out[row] = self._arrays[array][box]
            yield self._out


class TensorStore(Reader):
    """tensorstore: all crops of a batch as asynchronous reads, cast into the batch as they arrive."""

    def __init__(self, task: Task) -> None:
        import tensorstore

        self._task = task
        limit = {"data_copy_concurrency": {"limit": task.threads}, "file_io_concurrency": {"limit": task.threads}}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}, **limit})
        spec = [{"driver": "zarr3", "kvstore": {"driver": "file", "path": path}} for path in task.arrays]
        self._arrays = [tensorstore.open(one, context=context, read=True, open=True).result() for one in spec]
        self._out = task.empty()

    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield batches."""
        for number in numbers:
            reads = [self._arrays[array][box].read() for array, box in self._task.selections(number)]
            for row, read in enumerate(reads):
                self._out[row] = read.result()
            yield self._out


class WholeBatches:
    """A map-style dataset whose items are whole batches, read by zarr-python in a worker process."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._reader: ZarrPython | None = None

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, number: int):
        import torch

        if self._reader is None:
            self._reader = ZarrPython(self._task)
        [batch] = self._reader.batches([number])
        return torch.from_numpy(batch.copy())


class Numbers:
    """A sampler whose list of batch numbers is set before each round."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class DataLoaderWorkers(Reader):
    """torch's DataLoader with as many worker processes as threads, each of which builds whole batches."""

    def __init__(self, task: Task) -> None:
        from torch.utils.data import DataLoader

        self._sampler = Numbers()
        # spawned: a fork would copy the threads' locks of the libraries that are loaded here
        self._loader = DataLoader(
            WholeBatches(task),
            batch_size=None,
            sampler=self._sampler,
            num_workers=task.threads,
            persistent_workers=True,
            multiprocessing_context="spawn",
        )

    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield batches."""
        self._sampler.numbers = list(numbers)
        iterator = iter(self._loader)
        self.children = tuple(worker.pid for worker in iterator._workers)  # noqa: SLF001
        for batch in iterator:
            yield batch.numpy()

    def close(self) -> None:
        """Stop the workers."""
        if self._loader._iterator is not None:  # noqa: SLF001
            self._loader._iterator._shutdown_workers()  # noqa: SLF001


def open_reader(name: str, task: Task) -> Reader:
    """Return the reader of a name."""
    from _crops.floor import Floor

    makers: dict[str, Callable[[], Reader]] = {
        "floor": lambda: Floor(task),
        "ours": lambda: Rankwise(task),
        "fallback": lambda: Rankwise(task),
        "zarr": lambda: ZarrPython(task),
        "zarrs": lambda: ZarrPython(task, zarrs=True),
        "tensorstore": lambda: TensorStore(task),
        "dataloader": lambda: DataLoaderWorkers(task),
    }
    return makers[name]()
