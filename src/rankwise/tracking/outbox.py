"""`Outbox`: numbers on their way to a tracking service, which may be slow or dead without the training noticing."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["Line", "Outbox", "Refused", "RunFacts", "Service", "Table", "TableService"]

_BATCH = 500  # lines of one delivery
_LIMIT = 10_000  # lines that wait; a line of ten numbers is about 2 kB
_FLUSH_S, _LONGEST_WAIT_S = 1.0, 30.0
_log = logging.getLogger("rankwise.tracking")


class Refused(Exception):  # noqa: N818  (an answer of the service, caught by the outbox)
    """The service will never take these lines, so they are not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The numbers of one log step, as services take them.

    Attributes:
        step: optimizer steps done.
        values: number by name; text tags stand before the names ("val/loss").
        time_ms: when it was logged, in milliseconds since 1970.
    """

    step: int
    values: Mapping[str, float]
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A small table, such as what a model says about a few samples.

    Attributes:
        name: of the table; one of a step replaces that of the same step.
        step: optimizer steps done.
        columns: JSON values by column, all of one length.
    """

    name: str
    step: int
    columns: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a service is told of a run.

    Attributes:
        run_id: tells the run from all others, the same in every attempt.
        folder: the run directory.
        attempt: number of this attempt.
        restored_step: where it goes on; None if it begins at nothing.
        config: what made the run, secrets masked.
        environment: where this attempt runs, code version included, secrets masked.
    """

    run_id: str
    folder: Path
    attempt: int
    restored_step: int | None
    config: Mapping[str, Any]
    environment: Mapping[str, Any]


@runtime_checkable
class Service(Protocol):
    """A tracking service. After `load`, all methods are called from the outbox's thread; what they raise is retried."""

    @property
    def title(self) -> str:
        """Its name."""
        ...

    def load(self) -> None:
        """Import what it needs, in the main thread. Raises MissingExtraError."""
        ...

    def connect(self, run: RunFacts, known_id: str | None) -> str:
        """Begin or continue the run's curves and return their id; `known_id` is that of an earlier attempt."""
        ...

    def send(self, lines: Sequence[Line]) -> None:
        """Deliver lines, again after an error; what an earlier attempt delivered is left out. May raise `Refused`."""
        ...

    def finish(self, *, done: bool) -> None:
        """Write out everything and end; `done` tells whether the run is finished."""
        ...


@runtime_checkable
class TableService(Service, Protocol):
    """A service that takes tables, too."""

    def send_table(self, table: Table) -> None:
        """Deliver a table, again after an error. May raise `Refused`."""
        ...


class Outbox:
    """A sink that keeps lines until its thread has delivered them; `log` never waits and never raises.

    An error is said once and the lines are tried again, at growing distances up to 30 s. Lines that find the outbox
    full, or that are left when `close` has waited, are counted and the count is said.

    Args:
        service: where the lines go.
        facts: returns what the service is told, given the restored step.
        is_done: whether the run is finished, asked at the end.
        limit: lines that may wait.
        close_s: the longest that `close` waits, in seconds.

    Attributes:
        id: the id of the curves, once there is one.
        known_id: that of an earlier attempt; set it before `start`.
        num_dropped: lines that never arrived.
        num_errors: calls that failed.
    """

    def __init__(
        self,
        service: Service,
        facts: Callable[[int | None], RunFacts],
        is_done: Callable[[], bool],
        *,
        limit: int = _LIMIT,
        close_s: float = 15.0,
    ) -> None:
        service.load()
        self.service = service
        self.id: str | None = None
        self.known_id: str | None = None
        self.num_dropped = self.num_errors = 0
        self._facts, self._is_done, self._limit, self._close_s = facts, is_done, limit, close_s
        self._lines: deque[Line | Table] = deque()  # in their order: some services take ascending steps only
        # For the lines, the dropped ones and the deadline. Never held while the service is called: the loop logs.
        self._changed = threading.Condition()
        self._deadline_s: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Begin to deliver."""
        del attempt  # the facts say it
        facts = self._facts(restored_step)
        name = f"rankwise-{self.service.title}"
        # a daemon: a call that hangs in the service's library must not keep the process
        thread = threading.Thread(target=self._run, args=(facts,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no service is worth a training: the lines are counted, and said at the end
            self._said(error, "gets nothing; the training goes on")
            return
        self._thread = thread

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Take a line."""
        prefix = "".join(f"{tag}/" for tag in tags.values() if isinstance(tag, str))
        named = {prefix + name: float(value) for name, value in values.items()}
        self._take(Line(step=step, values=named, time_ms=time.time_ns() // 1_000_000))

    def table(self, table: Table) -> None:
        """Take a table, for a service that takes any."""
        if isinstance(self.service, TableService):
            self._take(table)

    def _take(self, line: Line | Table) -> None:
        with self._changed:
            if len(self._lines) >= self._limit:
                self.num_dropped += 1
                first = self.num_dropped == 1
            else:
                self._lines.append(line)  # nobody is woken: the thread looks once a second, and lines go together
                first = False
        if first:
            _log.warning("%s takes no lines: %d wait and further ones are dropped", self.service.title, self._limit)

    def close(self) -> None:
        """Deliver what is left, for `close_s` seconds at most."""
        with self._changed:  # set and told in one: the thread is either before its look, or waits and is woken
            self._deadline_s = time.monotonic() + self._close_s
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._close_s)
        # The thread may hang inside the service for ever. It is left behind, and finds nothing if it comes back.
        with self._changed:
            lost = self.num_dropped + len(self._lines)
            self.num_dropped, running = lost, self._thread is not None and self._thread.is_alive()
            self._lines.clear()
        if lost or running:
            _log.warning(
                "%s has not got everything: %d lines were dropped after %d errors; metrics.jsonl has them all",
                self.service.title,
                lost,
                self.num_errors,
            )

    def _run(self, facts: RunFacts) -> None:
        wait_s = 0.0
        while not self._expired():
            with self._changed:
                self._changed.wait_for(lambda: self._deadline_s is not None, timeout=wait_s)
                closing = self._deadline_s is not None
                # copied, not taken: what is not delivered keeps its place and its order, and is counted by `close`
                lines = [self._lines[index] for index in range(min(_BATCH, len(self._lines)))]
            try:
                if self._deliver(facts, lines, closing=closing):
                    return
                wait_s = 0.0 if len(lines) == _BATCH else _FLUSH_S
            except Exception as error:  # noqa: BLE001  (whatever a service does, it must not stop the run)
                self._said(error, "cannot be reached; the training goes on, and it is tried again")
                wait_s = min(_LONGEST_WAIT_S, max(1.0, 2 * wait_s))
                if closing:
                    time.sleep(0.2)

    def _deliver(self, facts: RunFacts, lines: Sequence[Line | Table], *, closing: bool) -> bool:
        """Deliver; return whether that was all."""
        if self.id is None:
            self.id = self.service.connect(facts, self.known_id)
        # lines go together, a table alone: each has a key of its own
        keyed = ((number if isinstance(line, Table) else -1, line) for number, line in enumerate(lines))
        for _, group in itertools.groupby(keyed, lambda item: item[0]):
            self._send([line for _, line in group])
        if not closing or self._lines:  # one look: a line that comes now is too late, and `close` counts it
            return False
        self.service.finish(done=self._is_done())
        return True

    def _send(self, lines: Sequence[Line | Table]) -> None:
        """Send lines that stand together, or one table."""
        refused = False
        try:
            if isinstance(self.service, TableService) and isinstance(lines[0], Table):
                self.service.send_table(lines[0])
            else:
                self.service.send([line for line in lines if isinstance(line, Line)])
        except Refused as error:
            self._said(error, "refuses lines, which are dropped")
            refused = True
        self._forget(len(lines), dropped=refused)

    def _forget(self, count: int, *, dropped: bool = False) -> None:
        with self._changed:
            for _ in range(min(count, len(self._lines))):  # `close` may have counted and emptied them meanwhile
                self._lines.popleft()
            self.num_dropped += count if dropped else 0

    def _expired(self) -> bool:
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def _said(self, error: Exception, what: str) -> None:
        self.num_errors += 1
        if self.num_errors == 1:
            _log.warning("%s %s: %s: %.300s", self.service.title, what, type(error).__name__, error)
