"""`DatasetLoader`: any map-style torch `Dataset`, through torch's own DataLoader, in our order."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from rankwise.data.contract import Order, Share, sample_keys
from rankwise.data.feed import Cursor, CursorLoader, check_fits
from rankwise.data.feed.options import find_place, refuse_unknown
from rankwise.data.feed.workers.forkserver import InitWorker, check_importable, sigterm_blocked, start_server
from rankwise.data.samples.dataset_batch import DatasetBatch, move_tree, no_rows
from rankwise.data.samples.keyed import KeyedDataset, check_dataset, layers
from rankwise.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

    from rankwise.world import World


class Requests:
    """Yields lists of (sample, key), one per micro-batch, and records their shares.

    For an empty share it requests the step's first sample, so that the collate function shows the form of a batch;
    the loader cuts it to zero rows. The DataLoader pulls lists ahead of training; this does not move the state.

    Args:
        cursor: where the loader stands.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.pulled: deque[Share] = deque()

    def begin(self) -> deque[Share]:
        """Restart at the cursor; return the queue for the shares of this iteration."""
        self.pulled = deque()
        return self.pulled

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        pulled, speeds = self.pulled, self._cursor.speeds
        for step in self._cursor.steps():
            for share in self._cursor.shares(step, speeds):
                ids = share.ids if share.num_samples else step.ids[:1]
                keys = sample_keys(step.resume.seed, step.epoch, ids)
                pulled.append(share)
                yield list(zip(ids.tolist(), keys.tolist(), strict=True))


class Fetching:
    """One iteration of a DataLoader, from where the loader stands; workers start to fetch at once.

    Args:
        loader: torch's DataLoader.
        requests: its batch sampler.
        cursor: where the loader stands.

    Attributes:
        batches: iterator over the batches.
        pulled: the share of each batch, added when the batch is requested.
    """

    def __init__(self, loader: DataLoader[Any], requests: Requests, cursor: Cursor) -> None:
        self._loader, self._cursor = loader, cursor
        self._begun_at = cursor.order, cursor.done, cursor.speeds
        self._random = loader.generator.get_state()
        self.pulled: deque[Share] = requests.begin()
        self.batches: Iterator[Any] = iter(loader)

    @property
    def is_next(self) -> bool:
        """Whether the loader still stands where this iteration began."""
        order, done, speeds = self._begun_at
        return order is self._cursor.order and (done, speeds) == (self._cursor.done, self._cursor.speeds)

    def drop(self) -> None:
        """Undo this iteration: restore the generator, so that the next one draws the same seeds again."""
        self.batches = iter(())
        self._loader.generator.set_state(self._random)


class DatasetLoader(CursorLoader):
    """Implements `BatchLoader` over a map-style dataset: ``dataset[i]`` and ``len(dataset)``.

    The samples of a step are those of the order, for any number of workers. Workers may fetch ahead; the position moves
    when a step is marked done. A rank without samples in a step gets the batch that ``collate_fn`` makes of one sample,
    cut to zero rows. ``batch.data`` is the result of ``collate_fn``, on the device; ``batch["x"]`` and ``batch[0]``
    index into it if it is a dict or a tuple.

    Random numbers in the dataset can depend on the sample alone: see `reseed` and `sample_key`.

    Workers are started by "forkserver", which imports the main script once for all loaders of a process. (A plain fork
    can hang in a process that has threads, as zarr, CUDA and process groups start them.) So the dataset must be
    picklable and must not be defined in a notebook, and a script that uses workers needs ``if __name__ ==
    "__main__":``. Workers stay alive from epoch to epoch, and end when the process ends, however it ends.

    Args:
        dataset: map-style dataset.
        order: which samples form which step; its batch size is that of all ranks together.
        micro_batch: most samples of this rank in one batch; None = its whole share at once.
        num_workers: worker processes; 0 fetches in this process.
        prefetch_factor: batches that each worker fetches ahead, default 2.
        collate_fn: list of samples to a batch; default torch's.
        world: the world; None = `World.current()`.
        device: "auto" = the world's device, any torch device, or None to leave batches as collated.
        pin_memory: page-lock batches for the copy; None = if the device is CUDA.
        reseed: seed the global generators of `random`, NumPy and torch (CPU) with the sample's key before each
            ``dataset[i]`` and restore them afterwards; then transforms that use them give the same at any world
            size. None = yes, except for a dataset with ``__getitems__``, which fetches whole batches.
        worker_init_fn: called with the worker's number in each worker.
        persistent_workers: keep workers from epoch to epoch; None = yes if there are any.
        multiprocessing_context: start method of workers: "forkserver" (default), "spawn" or "fork".
        timeout: seconds to wait for a batch from the workers; 0 = for ever.

    Raises:
        ConfigError: the dataset is not map-style, its length differs from the order's, or an argument is out of range.
        MissingExtraError: torch is not installed.
        TypeError: there is no such argument.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        order: Order | None = None,
        micro_batch: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        world: World | None = None,
        device: str | torch.device | None = "auto",
        pin_memory: bool | None = None,
        reseed: bool | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        persistent_workers: bool | None = None,
        multiprocessing_context: str | None = None,
        timeout: float = 0,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self), unknown, taken=())
        if not isinstance(order, Order):
            raise ConfigError(
                "DatasetLoader needs order=, which says what samples form a step, such as "
                f"Order(len(dataset), batch_size=64); got {order!r}"
            )
        check_dataset(dataset, num_workers=num_workers, prefetch_factor=prefetch_factor)
        keyed = KeyedDataset(dataset, reseed=reseed)
        check_fits(order, num_samples=len(dataset), fingerprint=keyed.fingerprint)
        place = find_place(world, device)
        self.dataset = dataset
        self._device = place.device
        self._pinned = str(place.device).startswith("cuda") if pin_memory is None else pin_memory
        super().__init__(Cursor(order, rank=place.rank, world_size=place.world_size, micro_batch=micro_batch))
        self._cursor.follows_world = world is None
        self._requests = Requests(self._cursor)
        self._num_iterations = self._num_open = 0
        self._early: Fetching | None = None
        self._context = context = multiprocessing_context or ("forkserver" if num_workers else None)
        if num_workers and context != "fork":
            for layer in layers(dataset):
                check_importable("dataset", layer)
            for what, sent in (("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)):
                check_importable(what, sent)
        self._loader = _torch_loader(
            keyed,
            self._requests,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            collate_fn=collate_fn,
            pin_memory=self._pinned,
            worker_init_fn=InitWorker(worker_init_fn) if num_workers else worker_init_fn,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            multiprocessing_context=context,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        text = f"{len(self.dataset)} samples of {type(self.dataset).__name__}"
        return f"DatasetLoader({len(self)} steps to the end of the epoch; {text})"

    def __iter__(self) -> Iterator[tuple[DatasetBatch, ...]]:
        self._check_open()
        self._num_iterations += 1
        mine = self._num_iterations
        self._cursor.check_ranks()
        self._num_open += 1
        start, num_left = self._cursor.done, len(self)
        self._repeats.begins(start)
        try:
            fetching = self._begin()
            while num_left:
                if mine != self._num_iterations:
                    raise ConfigError(
                        "this iteration of the DatasetLoader ended when another one started: its workers serve one at "
                        "a time; create a second loader to iterate twice at once"
                    )
                batches = self._step(fetching)
                num_left -= 1
                yield batches
                del batches
        finally:
            self._num_open -= 1
            self._repeats.ends(start, whole=not num_left)

    def peek(self) -> DatasetBatch:
        """Fetch and return the first micro-batch of the next iteration, in this process.

        No state changes, except random generators that the dataset uses if `reseed` is off.

        Raises:
            ConfigError: no step is left.
        """
        asked = Requests(self._cursor)
        for request in asked:
            dataset: Any = self._loader.dataset
            return self._on_device(self._loader.collate_fn(dataset.__getitems__(request)), asked.pulled.popleft())
        raise ConfigError("peek found no further step: the order is at its end")

    @property
    def samples(self) -> Any:
        """The dataset."""
        return self.dataset

    def start_prefetch(self) -> bool:
        """Start the workers, which fetch the first batches of the next iteration; returns when they have started.

        An iteration that begins elsewhere drops these batches. The workers get their copy of the dataset here, unless
        they are alive from an earlier epoch. The next iteration raises the errors. Calling it twice is fine.

        Returns:
            Whether anything is fetched: not without workers, and not during an iteration.
        """
        self._check_open()
        if not self._loader.num_workers or self._num_open:
            return False
        try:
            self._early = self._begin()
        except Exception:  # noqa: BLE001  (whoever iterates sees it)
            return False
        return True

    def close(self) -> None:
        """End the workers, persistent ones too; iterating again raises ConfigError. Calling it twice is fine."""
        self._is_closed = True
        if self._early is not None:
            self._early.drop()
        self._early = self._loader._iterator = None  # noqa: SLF001  (torch keeps workers that stay there)

    def _begin(self) -> Fetching:
        """Return the iteration that was started early if it begins where the loader stands, else a new one."""
        early, self._early = self._early, None
        if early is not None:
            if early.is_next:
                return early
            early.drop()
        if not self._loader.num_workers:
            return Fetching(self._loader, self._requests, self._cursor)
        if self._context == "forkserver":
            start_server()
        try:
            with sigterm_blocked(self._context):
                return Fetching(self._loader, self._requests, self._cursor)
        except (TypeError, AttributeError, PicklingError) as error:
            error.add_note(
                "while sending the dataset, collate_fn and worker_init_fn to a worker: they must not hold open files, "
                "locks or lambdas (open files where samples are read, as docs/samples.md does for HDF5), or "
                'use multiprocessing_context="fork" or num_workers=0'
            )
            raise

    def _step(self, fetching: Fetching) -> tuple[DatasetBatch, ...]:
        batches = [self._batch(fetching)]
        while len(batches) < batches[0].share.num_micro:
            batches.append(self._batch(fetching))
        return tuple(batches)

    def _batch(self, fetching: Fetching) -> DatasetBatch:
        try:
            data = next(fetching.batches)
        except RuntimeError as error:
            if "exited unexpectedly" in str(error):
                error.add_note(
                    "the worker's own output says why. If it imports this script: put what the script does under "
                    '`if __name__ == "__main__":`. If it was killed: memory (free, cgroup) or /dev/shm is too small'
                )
            raise
        return self._on_device(data, fetching.pulled.popleft())

    def _on_device(self, data: Any, share: Share) -> DatasetBatch:
        if self._device is not None:
            data = move_tree(data, self._device, non_blocking=self._pinned)
        rows = no_rows(data) if share.num_samples == 0 else data
        return DatasetBatch(share, rows, uncut=data, loader=weakref.ref(self))


def _torch_loader(dataset: KeyedDataset, requests: Requests, **options: Any) -> DataLoader[Any]:
    with needs_extra("a DatasetLoader needs torch's DataLoader: pip install 'rankwise[train]'"):
        import torch
        from torch.utils.data import DataLoader
    # A separate generator: drawing the workers' base seed must not change the random state of the training.
    generator = torch.Generator().manual_seed(0)
    return DataLoader(dataset, batch_sampler=requests, generator=generator, **options)  # type: ignore[arg-type]
