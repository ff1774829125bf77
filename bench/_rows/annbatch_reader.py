"""annbatch with zarrs, for the same requests through a sampler of annbatch; runs in annbatch's interpreter."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from _rows.readers import Reader
from _rows.task import Task

PACKAGES = ("annbatch", "zarrs", "zarr", "anndata", "numcodecs", "scipy", "torch")
_PROBE = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
print(json.dumps(found))
"""


def versions(python: str) -> dict[str, str]:
    """Return what an interpreter has installed, empty if it cannot be run."""
    try:
        done = subprocess.run([python, "-I", "-c", _PROBE, *PACKAGES], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return json.loads(done.stdout)


class Annbatch(Reader):
    """Its `Loader` on the zarrs pipeline; dense rows by torch's `to_dense` where torch is there, else by SciPy."""

    def __init__(self, task: Task, output: str) -> None:
        _set_up(task)
        from annbatch import Loader

        self._output = output
        self._torch = output == "dense" and importlib.util.find_spec("torch") is not None
        self._sampler = _given(task)
        self._loader = Loader(batch_sampler=self._sampler, preload_to_gpu=False, to="torch" if self._torch else None)
        self._loader.add_dataset(_matrix(task))

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        self._sampler.numbers = list(numbers)
        for batch in self._loader:
            rows = batch["X"]
            if self._output != "dense":
                yield rows
            elif self._torch:
                yield rows.to_dense().numpy()
            else:
                yield rows.toarray()


class AnnbatchLoader(Reader):
    """Its `Loader` with its own `RandomSampler`: epochs as its users read them."""

    def __init__(self, task: Task) -> None:
        _set_up(task)
        from annbatch import Loader

        self._loader = Loader(**task.sampler_arguments(), rng=np.random.default_rng(0), preload_to_gpu=False, to=None)
        self._loader.add_dataset(_matrix(task))

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for _ in numbers:
            for batch in self._loader:
                yield batch["X"]


def _set_up(task: Task) -> None:
    import zarr

    warnings.simplefilter("ignore")  # of its dependencies, about coming defaults
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": task.threads})


def _matrix(task: Task) -> Any:
    import anndata
    import zarr

    group = zarr.open_group(task.baseline, mode="r")
    return anndata.io.sparse_dataset(group["X"]) if task.sparse else group["X"]


def _given(task: Task) -> Any:
    from annbatch.abc import Sampler

    class Given(Sampler):
        """Requests of a task, as annbatch's own samplers make them: slices, and places of the rows of each batch."""

        def __init__(self) -> None:
            self.numbers: list[int] = []

        @property
        def batch_size(self) -> int:
            return task.batch

        @property
        def shuffle(self) -> bool:
            return True

        def n_batches(self, n_obs: int) -> int:
            del n_obs
            return len(self.numbers) * len(task.cuts())

        def validate(self, n_obs: int) -> None:
            if n_obs != task.shape[0]:
                raise ValueError(f"wanted {task.shape[0]} rows, got {n_obs}")

        def _sample(self, n_obs: int) -> Iterator[dict[str, Any]]:
            del n_obs
            for number in self.numbers:
                order: np.ndarray = task.order(number)
                yield {
                    "requests": [slice(start, start + task.run) for start in task.starts(number).tolist()],
                    "splits": [order[cut] for cut in task.cuts()],
                }

    return Given()
