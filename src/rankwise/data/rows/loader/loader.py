"""`Loader`: batches of rows from datasets, in the order of a sampler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, Literal, Self

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON
from rankwise.data.feed.memory.lease import Lease
from rankwise.data.feed.prefetch import close_at_exit
from rankwise.data.feed.workers.iterable import iterable_class, rebuild
from rankwise.data.rows.abc import Rng, Sampler, lone_copy
from rankwise.data.rows.loader.datasets import AddedDatasets, iter_groups, load_group
from rankwise.data.rows.loader.defaults import (
    Library,
    check_gpu,
    check_library,
    choose_sampler,
    convert,
    global_batch,
    sharded_batches,
    warn_idle_workers,
    warn_no_batch,
)
from rankwise.data.rows.loader.position import LoaderPosition
from rankwise.data.rows.loader.requests import Requests, RowBlock, RowOrder
from rankwise.data.rows.notices import warn_once
from rankwise.data.rows.samplers.distributed import foreseen
from rankwise.data.rows.types import LoaderOutput
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError


class Loader:
    """Batches of rows, each a dict of X, obs, var and index; it can be iterated any number of times.

    In the background it reads the rows of a load request and decodes them into batch order, while earlier batches are
    in use. If torch is installed, it is also an `IterableDataset`.

    Args:
        collection: the same as calling `use_collection` with it.
        batch_sampler: decides which rows form which batch; without it, `chunk_size` to `rng` make a sampler.
        chunk_size: neighbouring rows that are read as one run; 512.
        preload_nchunks: runs of one load request; 32.
        shuffle: use a `RandomSampler` instead of a `SequentialSampler`; False.
        return_index: whether batches contain their row numbers.
        batch_size: rows of a batch; 1.
        preload_to_gpu: whether X is on the current CUDA device, with to="torch".
        drop_last: drop the last batch if it is not full; False.
        to: "torch" or "jax"; None = NumPy arrays and scipy CSR matrices.
        rng: generator or seed of the shuffle.
        across_epochs: whether to read the first load request of the next pass while the last batches of this one are
            used; only for our samplers and stored data; dropped if the next pass begins with other rows.
        sharding: with to="jax": ``jax.sharding.Sharding`` of global arrays of all ranks' rows; without it, arrays are
            each rank's own. It needs a `DistributedSampler` with equal batches; X is then global, and dense. For
            an order, see `OrderedLoader`.

    Raises:
        ConfigError: arguments contradict each other, or cannot work on this machine.
        MissingExtraError: the library of `to` is not installed.
    """

    plain_class: type
    scope: Literal["sharded"] = "sharded"  # for checkpoints: each rank saves and loads its own position

    def __new__(cls, *_: Any, to: Library | None = None, order: Any = None, **__: Any) -> Any:
        """Make a loader; for torch its class also inherits from `IterableDataset`."""
        if order is not None:
            raise ConfigError(
                "Loader needs a sampler; OrderedLoader(collection, order=...) draws rows by an order, with a "
                "position that can be saved"
            )
        return super().__new__(iterable_class(cls, to))

    def __init__(
        self,
        collection: Any = None,
        *,
        batch_sampler: Sampler | None = None,
        chunk_size: int | None = None,
        preload_nchunks: int | None = None,
        shuffle: bool | None = None,
        return_index: bool = False,
        batch_size: int | None = None,
        preload_to_gpu: bool = False,
        drop_last: bool | None = None,
        to: Library | None = None,
        rng: Rng = None,
        across_epochs: bool = True,
        sharding: Any = None,
    ) -> None:
        arguments = {
            "chunk_size": chunk_size, "preload_nchunks": preload_nchunks, "batch_size": batch_size,
            "drop_last": drop_last, "rng": rng, "shuffle": shuffle,
        }  # fmt: skip
        check_library(to)
        check_gpu(to, wanted=preload_to_gpu)
        self._batch_sampler = choose_sampler(batch_sampler, arguments)
        self._batch_sampler.share_epoch()
        self._sharded = sharded_batches(sharding, self._batch_sampler, to=to)
        self._return_index, self._to, self._on_gpu = return_index, to, preload_to_gpu
        self._datasets = AddedDatasets(BoxReader(cache=0))
        self._position = LoaderPosition(self._batch_sampler, self._datasets)
        self._across_epochs, self._is_last = across_epochs, False
        self._num_open, self._has_collection = 0, False
        self._kept: Requests | None = None  # of the last pass, for the next: fresh memory costs as much as reading
        if collection is not None:
            self.use_collection(collection)

    # show the arguments of __init__, not those of __new__
    __signature__ = inspect.Signature(list(inspect.signature(__init__).parameters.values())[1:])

    def __len__(self) -> int:
        """Batches of a whole pass, also after a position was loaded: see `num_left`.

        Loops that resume inside an epoch, for example Lightning's, count its batches from the beginning, as they do
        with torch's StatefulDataLoader.
        """
        return self._batch_sampler.n_batches(self.n_obs)

    def __repr__(self) -> str:
        return f"Loader({self.n_obs} rows, {type(self._batch_sampler).__name__}, to={self._to!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "_num_open": 0, "_kept": None}
        return rebuild, (getattr(type(self), "plain_class", type(self)), self._to), state

    @property
    def num_left(self) -> int:
        """Batches that the next pass will yield: those of a whole pass, or the rest after a loaded position."""
        return max(0, len(self) - self._position.num_done)

    @property
    def n_obs(self) -> int:
        """Number of rows of all datasets."""
        return self._datasets.num_rows

    @property
    def n_var(self) -> int:
        """Number of columns: size of the second axis.

        Raises:
            ValueError: no data were added yet.
        """
        return self._datasets.row_shape[0]

    @property
    def var(self) -> Any:
        """pandas.DataFrame about the columns, or None."""
        return self._datasets.var

    @property
    def dataset_type(self) -> type:
        """Type of the matrices that were added.

        Raises:
            ValueError: no data were added yet.
        """
        return self._datasets.matrix_type

    @property
    def batch_sampler(self) -> Sampler:
        """The sampler, which decides which rows form which batch."""
        return self._batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass; see `Sampler.set_epoch`."""
        self._batch_sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, JSON]:
        """Return the position of the newest pass, after the last batch that was handed out; a small JSON object.

        With a seed from the caller (``rng=0``), the state of one rank is valid for all ranks at the same batch. Without
        one, each rank saves its own state, which contains the seed.

        Raises:
            ConfigError: workers of a `DataLoader` read, and only they know the position; or there are no rows.
        """
        return self._position.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after a saved position: the next pass is the rest of that epoch, with byte-identical batches.

        Earlier batches are drawn again, which costs little, but not read. `len` stays that of a whole epoch; `num_left`
        counts the remaining batches. Setting the same epoch keeps the position. A state between two epochs works with
        any sampler and any number of ranks.

        Raises:
            ConfigError: the state lies inside an epoch, and data, sampler or number of ranks differ, or the settings of
                your own sampler are unknown; see `Sampler.pass_settings`.
        """
        self._position.load_state_dict(state)

    def peek(self) -> LoaderOutput:
        """Return the first batch of the next pass, read now; position and sampler do not change.

        Raises:
            ConfigError: there are no rows, no batch is left, or your own sampler cannot be copied.
            DataError: a row cannot be read.
        """
        sampler = foreseen(self._batch_sampler)
        try:
            sampler = lone_copy(self._batch_sampler) if sampler is None else sampler
        except Exception as error:
            raise ConfigError(
                f"peek draws from a copy of the sampler, and {type(self._batch_sampler).__name__} cannot be copied "
                f"({error}): iterate instead"
            ) from error
        order = self._position.first_order(sampler)
        if order is None:
            raise ConfigError("peek found no further batch, or the loader has no rows")
        first, last = order.edges[:2]
        order = RowOrder(rows=order.rows[first:last], edges=(0, last - first))
        about = self._datasets.obs()
        about = None if about is None else about.iloc[order.rows]
        return self._batch(order, self._datasets.open_rows().read(order.rows, Lease()), about, 0, last - first)

    def start_prefetch(self) -> bool:
        """Begin to read the first load request of the next pass in the background; returns at once.

        Make the loader before the model, and both are ready at the same time. The pass takes the request over if it
        begins with the same rows, and drops it otherwise. The sampler and its generator do not change. The pass raises
        errors. Calling it twice is fine.

        Returns:
            Whether it is read: only if the sampler is one of ours (not a `DistributedSampler` over classes), the data
                are stored, and no pass is under way. Workers of a `DataLoader` return False: they read for themselves.
        """
        order = None if self._num_open else self._following()
        if order is None:
            return False
        requests = self._requests()
        requests.start(order)
        self._kept = requests
        return True

    def expect_last_epoch(self) -> None:
        """Say that no pass will follow the next one soon: do not prefetch at its end."""
        self._is_last = True

    def use_collection(self, collection: Any, *, load_adata: Callable[[Any], Any] = load_group) -> Self:
        """Add all datasets of a collection; allowed once.

        Args:
            collection: `DatasetCollection`, or folder or URL of a collection or of AnnData stores.
            load_adata: turns the Zarr group of a dataset into the AnnData whose X, obs and var are used. The default
                takes X, all columns of obs and the names of var.

        Raises:
            ValueError: it is empty, or its datasets do not fit together.
            RuntimeError: a collection was added already.
        """
        if self._has_collection:
            raise RuntimeError(
                "this loader already has a collection, and collections are shuffled separately: write them into "
                "one, or add more data with add_adatas"
            )
        self.add_adatas([load_adata(group) for group in iter_groups(collection)])
        self._has_collection = True
        return self

    def add_adatas(self, adatas: Sequence[Any]) -> Self:
        """Add AnnData objects; see `add_adata`.

        Raises:
            ValueError: there are none, or they do not fit together.
            TypeError: rows cannot be loaded from the X of one.
        """
        if not len(adatas):
            raise ConfigError("add_adatas needs at least one AnnData, got none")
        for adata in adatas:
            self.add_adata(adata)
        return self

    def add_adata(self, adata: Any) -> Self:
        """Add an AnnData: X, obs (unless it has no columns) and var.

        Args:
            adata: X is a CSR matrix in a Zarr store, zarr.Array, numpy.ndarray, or SciPy CSR matrix.

        Raises:
            ValueError: it does not fit the existing datasets.
            TypeError: X is of another kind.
        """
        if not hasattr(adata, "obsm"):
            raise TypeError(
                f"add_adata needs an AnnData, got {type(adata).__name__}: pass the path of a store or collection to "
                "use_collection, or read a file into memory with anndata.read_h5ad(path)"
            )
        ignored = [f"{table}/{key}" for table in ("obsm", "layers") for key in getattr(adata, table) if key is not None]
        if ignored:
            warn_once(
                f"batches hold X, obs and var; {', '.join(sorted(ignored))} are ignored (an ordered loader reads them "
                "by name: OrderedLoader(..., order=...))"
            )
        return self.add_dataset(adata.X, adata.obs if len(adata.obs.columns) else None, adata.var)

    def add_datasets(
        self, datasets: Sequence[Any], obs: Sequence[Any] | None = None, var: Sequence[Any] | None = None
    ) -> Self:
        """Add matrices, each with its tables; see `add_dataset`.

        Raises:
            ValueError: the numbers of tables and matrices differ, or something does not fit.
            TypeError: a matrix or table is of another kind.
        """
        tables = [[None] * len(datasets) if given is None else given for given in (obs, var)]
        for dataset, its_obs, its_var in zip(datasets, *tables, strict=True):
            self.add_dataset(dataset, its_obs, its_var)
        return self

    def add_dataset(self, dataset: Any, obs: Any = None, var: Any = None) -> Self:
        """Add a matrix.

        Args:
            dataset: CSR matrix in a Zarr store, zarr.Array of any number of axes, numpy.ndarray, or scipy CSR matrix.
            obs: pandas.DataFrame about its rows.
            var: pandas.DataFrame about its columns, the same for all datasets.

        Raises:
            ValueError: it does not fit the existing datasets.
            TypeError: it is of another kind.
            RuntimeError: a pass is under way.
        """
        if self._num_open:
            raise RuntimeError(
                "Cannot add datasets while the loader is being iterated: finish or close the iterator first"
            )
        self._datasets.add(dataset, obs, var)
        self._kept = None
        return self

    def __iter__(self) -> Iterator[LoaderOutput]:
        return close_at_exit(self._batches())

    def _batches(self) -> Iterator[LoaderOutput]:
        n_obs = self.n_obs
        if not n_obs:
            raise ConfigError("the loader has no rows: call use_collection, add_adatas or add_datasets first")
        warn_idle_workers(self._batch_sampler)
        goes_on, self._is_last = self._across_epochs and not self._is_last, False
        requests, current = self._requests(), self._position.next_pass()
        self._num_open += 1
        try:
            with closing(current.orders(n_obs)) as orders:
                following = self._following if goes_on else lambda: None
                for order, block, about in requests.read(orders, self._datasets.obs, following):
                    for first, last in pairwise(order.edges):
                        # no local name: it would keep its memory while the next one is made
                        yield current.counted(self._batch(order, block, about, first, last))
                    block.lease.leave()
                    del block  # the next read needs its memory
            current.has_ended = True
            if not current.num_done:
                warn_no_batch(self._batch_sampler, n_obs)
        except BaseException:
            requests.leave()
            raise
        finally:
            self._num_open -= 1
            self._kept = requests

    def _requests(self) -> Requests:
        kept, self._kept = self._kept, None
        return Requests(self._datasets.open_rows()) if kept is None or kept.is_elsewhere else kept

    def _following(self) -> RowOrder | None:
        """Return the first rows of the next pass, if they are known and worth reading."""
        if not self._datasets.is_stored or current_worker() is not None:
            return None
        try:
            sampler = foreseen(self._batch_sampler)
            return None if sampler is None else self._position.first_order(sampler)
        except Exception:  # noqa: BLE001  (who asks for that pass sees it)
            return None

    def _batch(self, order: RowOrder, block: RowBlock, about: Any, first: int, last: int) -> LoaderOutput:
        rows, sharded = block.part(first, last), self._sharded
        return {
            "X": convert(rows, self._to, gpu=self._on_gpu) if sharded is None else global_batch(rows, sharded),
            "obs": None if about is None else about.iloc[first:last],
            "var": self._datasets.var,
            "index": order.rows[first:last] if self._return_index else None,
        }
