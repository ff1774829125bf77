"""Prefetch: the load requests under way, read in the background, and how far a pass over them has come."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON, IntArray
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.loader.requests import RowBlock, RowOrder, order_rows
from rankwise.data.rows.matrices import gather_rows
from rankwise.data.rows.passes import PassDraws
from rankwise.errors import ConfigError

__all__ = ["WITH_AN_ORDER", "MemoryRows", "RequestReader", "RowsReader", "SavedPass", "UnderWay"]

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPass:
    """Where a loader stands: behind the first batches of a pass.

    Attributes:
        epoch: number of the pass.
        batches: how many were handed out.
        seed: of the sampler; None = it has no generator.
        rank: whose loader it is.
        sampler: settings of the sampler; None = they are not known.
        rows: rows of the loader.
        data: hash of its matrices' metadata.
        worker: of a worker of a `DataLoader` its `number`, the `count` of all, and the `salt` of the pass; else None.
    """

    epoch: int
    batches: int
    seed: int | None
    rank: int
    sampler: Mapping[str, JSON] | None
    rows: int
    data: str
    worker: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        made: dict[str, JSON] = json.loads(json.dumps({"version": _VERSION, **asdict(self)}))
        return made

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ConfigError: it is something else.
        """
        wanted = {"version", *cls.__dataclass_fields__}
        if set(state) != wanted:
            hint = ": it is the position of a loader with order=" if "recipe" in state else ""
            raise ConfigError(
                f"the state of a loader with a sampler has {', '.join(sorted(wanted))}; got {', '.join(sorted(state))}"
                f"{hint}"
            )
        if state["version"] != _VERSION:
            raise ConfigError(f"the state has version {state['version']!r}; this rankwise reads version {_VERSION}")
        for name in ("epoch", "batches", "rows", "rank"):
            if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
                raise ConfigError(f"the state of a loader wants a whole number for {name}, got {state[name]!r}")
        return cls(**{name: value for name, value in state.items() if name != "version"})

    def differences(self, here: SavedPass) -> list[str]:
        """Return in words what of the data, the sampler and the workers is not as it was."""
        was, now = _flat(self), _flat(here)
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        return [f"{name} was {was.get(name)}, is {now.get(name)}" for name in names]


def _flat(saved: SavedPass) -> dict[str, Any]:
    state: dict[str, Any] = saved.to_json()
    worker = state["worker"] or {}
    place = {"worker": f"{worker['number']} of {worker['count']}"} if worker else {}
    return {"rows": saved.rows, "data": saved.data, **(state["sampler"] or {}), **place}


_MOST_DRAWN = 2
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class RowsReader(Protocol[T_co]):
    """Reads rows; one thread at a time."""

    def read(self, rows: IntArray) -> T_co:
        """Return rows, in their order."""
        ...


@dataclass(slots=True, eq=False)
class _Request(Generic[T]):
    order: RowOrder
    block: Future[T]
    obs: Future[Any] | None = None


class RequestReader(Generic[T]):
    """Reads the load requests of one pass after the other, with memory that passes share.

    One is read while another is in use. Requests are drawn in the thread that takes them, so what draws them needs no
    lock. When all of a pass are drawn, the first one of the pass that may follow is read too, while the last one is in
    use or, if that is a short one, behind it, as `start` does before any pass; the pass gets it if its first request is
    the same.

    Args:
        rows: reads them.
    """

    def __init__(self, rows: RowsReader[T]) -> None:
        self._rows, self._pid = rows, os.getpid()
        self._thread: ThreadPoolExecutor | None = None  # of this pass
        self._behind: list[Future[T]] = []  # what the thread of the pass before it may still be reading
        self._pending: deque[_Request[T]] = deque()
        self._drawn: deque[RowOrder] = deque()
        self._foreseen: RowOrder | None = None
        self._error: Exception | None = None
        self._early: _Request[T] | None = None
        self._orders: Iterator[RowOrder] | None = None
        self._following: Callable[[], RowOrder | None] = lambda: None

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that was forked from the one that reads."""
        return self._pid != os.getpid()

    def start(self, order: RowOrder) -> None:
        """Read what the next pass will ask for first; no pass is under way. Returns at once, may be called again.

        Args:
            order: what that is.
        """
        if self._early is not None:
            if _same(self._early.order, order):
                return
            self._early.block.cancel()
            self._behind = [self._early.block]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rankwise-rows")
        self._early = self._submitted(order)
        self._end_thread()

    def begin(
        self, orders: Iterator[RowOrder], obs: Callable[[], Any], following: Callable[[], RowOrder | None]
    ) -> None:
        """Begin a pass.

        Args:
            orders: its requests, drawn up to three early.
            obs: returns the pandas.DataFrame about all rows, or None; called when reading is under way.
            following: called when all are drawn: what the next pass will ask for first, None = not known.
        """
        self._orders, self._obs, self._following = orders, obs, following
        self._foreseen = self._error = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rankwise-rows")
        self._thread.submit(_begin)
        self._behind = [] if self._early is None else [self._early.block]

    def take(self) -> tuple[RowOrder, T, Any] | None:
        """Return the next request of the pass, its rows, and what obs says about them; None after the last.

        Raises:
            Exception: what failed in drawing or reading it.
        """
        self._draw()
        self._fill()
        self._draw()
        if not self._pending:
            self._end_thread()
            if self._error is not None:
                raise self._error
            return None
        request = self._pending.popleft()
        block = request.block.result()
        about = None if request.obs is None else request.obs.result()
        self._fill()
        return request.order, block, about

    def _draw(self) -> None:
        """Draw so far ahead that the last one is known before it is read."""
        while self._orders is not None and len(self._drawn) < _MOST_DRAWN:
            try:
                self._drawn.append(next(self._orders))
            except StopIteration:
                self._orders = None
                if self._drawn or self._early is None:  # else the pass has no request at all
                    self._foreseen = self._following()
            except Exception as error:  # noqa: BLE001  (raised in its turn; a generator then ends)
                self._orders, self._error = None, error

    def _fill(self) -> None:
        """Have the next one read. What is in use may still be held until this returns: it must not take long."""
        if self._drawn and not self._pending:
            self._pending.append(self._asked(self._drawn.popleft()))
        waiting = sum(len(request.order.rows) for request in self._pending)
        if self._foreseen is not None and not self._drawn and 2 * waiting <= len(self._foreseen.rows):
            self._early, self._foreseen = self._submitted(self._foreseen), None

    def leave(self) -> None:
        """End the pass here: drop what was drawn, and wait for what is being read."""
        self._end_thread(wait=True)
        self._pending.clear()
        self._drawn.clear()
        self._early = self._orders = self._foreseen = None

    def _asked(self, order: RowOrder) -> _Request[T]:
        early, self._early = self._early, None
        if early is None or not _same(early.order, order):
            if early is not None:
                early.block.cancel()
            early = self._submitted(order)
        obs = self._obs()
        if obs is not None:
            early.obs = self._submit(lambda: obs.iloc[order.rows])
        return early

    def _submitted(self, order: RowOrder) -> _Request[T]:
        rows, behind, self._behind = self._rows, self._behind, []

        def read() -> T:
            futures.wait(behind)
            return rows.read(order.rows)

        return _Request(order, self._submit(read))

    def _submit(self, work: Callable[[], R]) -> Future[R]:
        assert self._thread is not None
        return self._thread.submit(work)

    def _end_thread(self, *, wait: bool = False) -> None:
        """Let the thread end when it has read what was asked for, or wait until it has read what it is reading."""
        if self._thread is not None:
            self._thread.shutdown(wait=wait, cancel_futures=wait)
            self._thread = None
        if wait:
            futures.wait(self._behind)


def _begin() -> None:
    """Nothing, but the thread is there: one that has to be started first would read before the caller goes on."""


def _same(one: RowOrder, other: RowOrder) -> bool:
    return one.edges == other.edges and np.array_equal(one.rows, other.rows)


WITH_AN_ORDER = (
    "pass order=Order(collection, batch_size=...) instead of a sampler: its position goes on at any number of ranks"
)


class UnderWay:
    """One pass.

    Args:
        sampler: draws it.
        saved: what to go on from, if it is of this pass; None = nothing.

    Attributes:
        draws: what the pass is drawn from; None = it has not begun.
        num_done: batches that were handed out, those before the saved position included.
        has_ended: whether all were.
    """

    def __init__(self, sampler: Sampler, saved: SavedPass | None) -> None:
        self._sampler, self._saved = sampler, saved
        self.draws: PassDraws | None = None
        self.num_done = 0
        self.has_ended = False

    def orders(self, n_obs: int) -> Generator[RowOrder, None, None]:
        """Yield what is to be read, request by request; batches before the saved position are drawn, and not read.

        Args:
            n_obs: rows of the loader.

        Raises:
            ConfigError: a request makes no sense, or the saved position is none of this pass.
        """
        with closing(self._sampler.sample(n_obs)) as requests:
            request = next(requests, None)
            num_left_out = self._begin()
            while request is not None:
                splits = list(request["splits"])
                if len(splits) > num_left_out:
                    yield order_rows({"requests": request["requests"], "splits": splits[num_left_out:]}, n_obs)
                num_left_out -= min(num_left_out, len(splits))
                request = next(requests, None)
        if num_left_out:
            raise ConfigError(f"the saved state lies {num_left_out} batches behind the end of its pass")

    def counted(self, batch: T) -> T:
        """Return a batch that is handed out."""
        self.num_done += 1
        return batch

    def _begin(self) -> int:
        """Note which pass has begun; return how many of its batches were handed out before."""
        self.draws, saved = self._sampler.last_pass, self._saved
        if saved is None or self.draws is None or saved.epoch != self.draws.epoch:
            return 0
        if saved.worker is None and current_worker() is not None:
            raise ConfigError(
                "a loader that goes on inside an epoch cannot be shared among workers of a DataLoader: take "
                f"num_workers=0 (reading goes on in the background all the same), or {WITH_AN_ORDER}"
            )
        self.num_done = saved.batches
        return saved.batches


class MemoryRows:
    """Rows of NumPy arrays or scipy CSR matrices, one over the other.

    Args:
        matrices: all of one kind.
    """

    def __init__(self, matrices: Sequence[Any]) -> None:
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([len(m) if isinstance(m, np.ndarray) else m.shape[0] for m in matrices])

    def read(self, rows: IntArray) -> RowBlock:
        """Return copies of rows, in their order.

        Args:
            rows: int64[n], rows over all matrices.
        """
        is_dense = isinstance(self._matrices[0], np.ndarray)
        num_cols = None if is_dense else int(self._matrices[0].shape[1])
        return RowBlock(arrays=gather_rows(self._matrices, self._ends, rows), num_cols=num_cols, errors={})
