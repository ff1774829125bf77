"""What lies between the threads of a stream: pushes, samples, plans and batches, and who waits for whom."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["Flow", "Group", "Starved"]

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")
_MAX_PLANS = 2


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """The samples of one batch, and errors of the source that came among them."""

    items: list[T]
    errors: list[BaseException]


@dataclass(frozen=True, slots=True)
class Starved:
    """Why a consumer got nothing: `drained` = nothing is on its way, else the time was up; `tail` samples wait."""

    drained: bool
    tail: int
    why: str


@dataclass(slots=True)
class _Trouble:
    """An error among the samples."""

    error: BaseException


@dataclass(slots=True)
class _State:
    pushes: deque[Iterator[Any]] = field(default_factory=deque)
    pulling: bool = False
    samples: deque[Any] = field(default_factory=deque)
    num_samples: int = 0  # of `samples`, without errors
    plans: deque[Any] = field(default_factory=deque)
    ready: deque[Any] = field(default_factory=deque)
    in_flight: int = 0  # batches taken from the samples and not ready yet
    num_waiting: int = 0
    closed: bool = False
    in_user_code: bool = False
    doing: str = ""


class Flow(Generic[T, P, R]):
    """One monitor for the whole way of samples (T) by plans (P) to results (R). Thread-safe.

    Args:
        batch_size: samples of a batch.
        lookahead: most samples that wait.
        drop_last: whether a last batch that is not full stays behind.

    Attributes:
        on_wait: called when a consumer begins to wait; must not wait itself.
    """

    def __init__(self, *, batch_size: int, lookahead: int, drop_last: bool) -> None:
        self._batch_size = batch_size
        self._lookahead = lookahead
        self._drop_last = drop_last
        self._state = _State()
        self.on_wait: Callable[[], object] = lambda: None
        self._changed = threading.Condition()

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        return self._state.closed

    @property
    def in_user_code(self) -> bool:
        """Whether the puller is inside the user's iterable, where nothing can wake it."""
        return self._state.in_user_code

    @property
    def is_awaited(self) -> bool:
        """Whether a consumer waits and there is nothing for it: what was read is all taken."""
        return self._state.num_waiting > 0 and not self._state.ready

    def close(self) -> None:
        """End it: everybody who waits goes on, empty-handed."""
        with self._changed:
            state = self._state
            state.closed = True
            for held in (state.pushes, state.samples, state.plans, state.ready):
                held.clear()
            self._changed.notify_all()

    def doing(self, what: str) -> None:
        """Note what the reader waits for, for messages."""
        self._state.doing = what

    # The puller

    def push(self, samples: Iterator[Any]) -> bool:
        """Add a source of samples. False if closed."""
        with self._changed:
            if self._state.closed:
                return False
            self._state.pushes.append(samples)
            self._changed.notify_all()
            return True

    def next_push(self) -> Iterator[Any] | None:
        """Return the next source, waiting for it; None once closed."""
        with self._changed:
            state = self._state
            state.pulling = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: state.closed or bool(state.pushes))
            if state.closed:
                return None
            state.pulling = True
            return state.pushes.popleft()

    def wait_for_room(self) -> bool:
        """Wait until one more sample may be pulled; marks the way into the user's code. False once closed."""
        with self._changed:
            state = self._state
            self._changed.wait_for(lambda: state.closed or len(state.samples) < self._lookahead)
            state.in_user_code = not state.closed
            return not state.closed

    def put_sample(self, sample: T) -> None:
        """Add a sample, after `wait_for_room`."""
        self._put(sample, 1)

    def put_trouble(self, error: BaseException) -> None:
        """Add an error in the place of a sample."""
        self._put(_Trouble(error), 0)

    def no_sample(self) -> None:
        """Leave the user's code with nothing: the source has ended."""
        with self._changed:
            self._state.in_user_code = False

    def _put(self, item: Any, count: int) -> None:
        with self._changed:
            self._state.in_user_code = False
            if not self._state.closed:
                self._state.samples.append(item)
                self._state.num_samples += count
                self._changed.notify_all()

    # The planner

    def take_group(self) -> Group[T] | None:
        """Return the samples of the next batch, waiting for them; None once closed.

        A group that is not full comes only when nothing follows and a consumer waits.
        """
        with self._changed:
            state = self._state
            self._changed.wait_for(lambda: state.closed or self._group_is_due())
            if state.closed:
                return None
            items: list[T] = []
            errors: list[BaseException] = []
            while state.samples and len(items) < self._batch_size:
                item = state.samples.popleft()
                if isinstance(item, _Trouble):
                    errors.append(item.error)
                else:
                    items.append(item)
            state.num_samples -= len(items)
            state.in_flight += 1
            self._changed.notify_all()
            return Group(items, errors)

    def _group_is_due(self) -> bool:
        state = self._state
        if state.num_samples >= self._batch_size:
            return True
        if not state.num_waiting or not self._nothing_follows() or state.in_flight or state.ready:
            return False
        has_trouble = len(state.samples) > state.num_samples
        return has_trouble or (state.num_samples > 0 and not self._drop_last)

    def _nothing_follows(self) -> bool:
        return not self._state.pushes and not self._state.pulling

    def put_plan(self, plan: P) -> bool:
        """Add a plan, waiting for room. False once closed."""
        with self._changed:
            state = self._state
            self._changed.wait_for(lambda: state.closed or len(state.plans) < _MAX_PLANS)
            if not state.closed:
                state.plans.append(plan)
                self._changed.notify_all()
            return not state.closed

    # The reader

    def take_plan(self) -> P | None:
        """Return the next plan, waiting for it; None once closed."""
        with self._changed:
            state = self._state
            self._changed.wait_for(lambda: state.closed or bool(state.plans))
            if state.closed:
                return None
            plan: P = state.plans.popleft()
            self._changed.notify_all()
            return plan

    def put_ready(self, *results: R) -> None:
        """Add the results of one plan, perhaps none."""
        with self._changed:
            self._state.in_flight -= 1
            if not self._state.closed:
                self._state.ready.extend(results)
            self._changed.notify_all()

    # The consumer

    @property
    def pending(self) -> bool:
        """Whether something that was pushed has not been taken, as far as is known."""
        with self._changed:
            return not self._is_drained()

    def take_ready(self, timeout_s: float | None) -> R | Starved | None:
        """Return the next result, or why there is none; None once closed.

        Args:
            timeout_s: longest wait; None = for ever.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            state = self._state
            state.num_waiting += 1
            self._changed.notify_all()
            self.on_wait()
            try:
                while not (state.closed or state.ready or self._is_drained()):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return Starved(drained=False, tail=state.num_samples, why=self._why())
                    self._changed.wait(left)
            finally:
                state.num_waiting -= 1
            if state.closed:
                return None
            if state.ready:
                result: R = state.ready.popleft()
                self._changed.notify_all()
                return result
            return Starved(drained=True, tail=state.num_samples, why="")

    def _is_drained(self) -> bool:
        state = self._state
        if not self._nothing_follows() or state.in_flight or state.ready:
            return False
        if len(state.samples) > state.num_samples:
            return False
        return state.num_samples == 0 or (self._drop_last and state.num_samples < self._batch_size)

    def _why(self) -> str:
        state = self._state
        if state.in_flight:
            return state.doing or "the next batch is being planned (its arrays are being opened)"
        if state.in_user_code:
            return (
                f"the pushed iterable has not given its next sample yet ({state.num_samples} of the "
                f"{self._batch_size} of a batch are there): it is slow, or waits for something"
            )
        return f"{state.num_samples} of the {self._batch_size} samples of a batch are there"
