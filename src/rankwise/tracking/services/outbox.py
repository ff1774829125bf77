"""`Outbox`: numbers on their way to a tracking service, which may be slow or dead without the training noticing."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
    """A small table, such as a model's predictions for a few samples.

    Attributes:
        name: name of the table; a table replaces one of the same name and step.
        step: optimizer steps done.
        columns: JSON values by column, all of one length; numbers may be NaN or infinite.
    """

    name: str
    step: int
    columns: Mapping[str, Sequence[Any]]

    @property
    def json_columns(self) -> dict[str, list[Any]]:
        """The columns with null for NaN and infinities, which JSON lacks."""
        return {key: [None if is_nonfinite(value) else value for value in cells] for key, cells in self.columns.items()}


def with_text_tags(values: Mapping[str, float], tags: Mapping[str, Any]) -> dict[str, float]:
    """Return the values with the text among the tags before their names ("val/loss")."""
    prefix = "".join(f"{tag}/" for tag in tags.values() if isinstance(tag, str))
    return {prefix + name: value for name, value in values.items()}


def is_nonfinite(value: Any) -> bool:
    """Whether it is a number that JSON lacks."""
    return isinstance(value, float) and not math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a run that a service receives.

    Attributes:
        run_id: unique id of the run, the same in every attempt.
        folder: the run directory.
        attempt: number of this attempt.
        restored_step: step of the restored checkpoint; None if there is none.
        config: the run's configuration, secrets masked.
        environment: environment of this attempt, including the code version, secrets masked.
    """

    run_id: str
    folder: Path
    attempt: int
    restored_step: int | None
    config: Mapping[str, Any]
    environment: Mapping[str, Any]


@runtime_checkable
class Service(Protocol):
    """A tracking service. After `load`, the outbox's thread calls all methods; it retries a call that raises.

    If it also has a method `send_table`, which gets a `Table` and may raise `Refused`, it receives the tables.
    """

    @property
    def title(self) -> str:
        """Its name."""
        ...

    def load(self) -> None:
        """Import the service's package, in the main thread. Raises MissingExtraError."""
        ...

    def connect(self, run: RunFacts, known_id: str | None) -> str:
        """Start or continue the run's curves and return their id ("" if none); `known_id`: of an earlier attempt."""
        ...

    def send(self, lines: Sequence[Line]) -> None:
        """Deliver lines; called again after an error; skip what an earlier attempt delivered. May raise `Refused`."""
        ...

    def finish(self, *, done: bool) -> None:
        """Flush everything and end; `done` tells whether the run is finished."""
        ...


class Outbox:
    """A sink that buffers lines until its thread has delivered them; `log` never blocks and never raises.

    An error is printed once, and the lines are retried with growing delays up to 30 s. Lines that do not fit into the
    full outbox, or that are left after `close` has waited, are counted and the count is printed.

    Args:
        service: where the lines go.
        facts: returns the facts for the service, given the restored step.
        is_done: returns whether the run is finished; called at the end.
        limit: maximum number of buffered lines.
        close_s: maximum time that `close` waits, in seconds.

    Attributes:
        id: the id of the curves, once known.
        known_id: the id of an earlier attempt; set it before `start`.
        num_dropped: lines that were not delivered.
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
        self._send_table: Callable[[Table], None] | None = getattr(service, "send_table", None)
        self.id: str | None = None
        self.known_id: str | None = None
        self.num_dropped = self.num_errors = 0
        self._facts, self._is_done, self._limit, self._close_s = facts, is_done, limit, close_s
        self._lines: deque[Line | Table] = deque()  # in order: some services accept ascending steps only
        # Guards the lines, the dropped count and the deadline. Never held during a call of the service: the loop logs.
        self._changed = threading.Condition()
        self._deadline_s: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Start the delivery thread."""
        del attempt  # the facts contain it
        facts = self._facts(restored_step)
        name = f"rankwise-{self.service.title}"
        # a daemon thread: a call that hangs in the service's library must not keep the process alive
        thread = threading.Thread(target=self._run, args=(facts,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # go on: the lost lines are counted and reported at the end
            self._said(error, "receives nothing; training continues")
            return
        self._thread = thread

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Buffer a line."""
        named = {name: float(value) for name, value in with_text_tags(values, tags).items()}
        self._take(Line(step=step, values=named, time_ms=time.time_ns() // 1_000_000))

    def table(self, table: Table) -> None:
        """Buffer a table, if the service accepts tables."""
        if self._send_table is not None:
            self._take(table)

    def _take(self, line: Line | Table) -> None:
        with self._changed:
            if len(self._lines) >= self._limit:
                self.num_dropped += 1
                first = self.num_dropped == 1
            else:
                self._lines.append(line)  # no notify: the thread checks once a second and sends lines together
                first = False
        if first:
            _log.warning(
                "%s accepts no lines: %d are waiting, and further lines are dropped", self.service.title, self._limit
            )

    def close(self) -> None:
        """Deliver the remaining lines, for at most `close_s` seconds."""
        with self._changed:  # set and notify under one lock: the thread has not checked yet, or waits and is woken
            self._deadline_s = time.monotonic() + self._close_s
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._close_s)
        # The thread may hang inside the service forever. It is abandoned, and finds an empty queue if it returns.
        with self._changed:
            lost = self.num_dropped + len(self._lines)
            self.num_dropped, running = lost, self._thread is not None and self._thread.is_alive()
            self._lines.clear()
        if lost or running:
            _log.warning(
                "%s did not receive everything: %d lines were dropped after %d errors; metrics.jsonl has all lines",
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
                # copy without removing: undelivered lines keep their order, and `close` counts them
                lines = [self._lines[index] for index in range(min(_BATCH, len(self._lines)))]
            try:
                if self._deliver(facts, lines, closing=closing):
                    return
                wait_s = 0.0 if len(lines) == _BATCH else _FLUSH_S
            except Exception as error:  # noqa: BLE001  (whatever a service does, it must not stop the run)
                if self._expired():
                    return  # `close` has said that lines are lost
                self._said(error, "cannot be reached; training continues, and sending is retried")
                wait_s = min(_LONGEST_WAIT_S, max(1.0, 2 * wait_s))
                if closing:
                    time.sleep(0.2)

    def _deliver(self, facts: RunFacts, lines: Sequence[Line | Table], *, closing: bool) -> bool:
        """Deliver; return whether all lines were delivered."""
        if self.id is None:
            self.id = self.service.connect(facts, self.known_id)
        # group consecutive lines; each table is alone, so it gets its own key
        keyed = ((number if isinstance(line, Table) else -1, line) for number, line in enumerate(lines))
        for _, group in itertools.groupby(keyed, lambda item: item[0]):
            self._send([line for _, line in group])
        if not closing or self._lines:  # checked once: `close` counts a line that arrives now
            return False
        self.service.finish(done=self._is_done())
        return True

    def _send(self, lines: Sequence[Line | Table]) -> None:
        """Send consecutive lines, or one table."""
        refused = False
        try:
            if self._send_table is not None and isinstance(lines[0], Table):
                self._send_table(lines[0])
            else:
                self.service.send([line for line in lines if isinstance(line, Line)])
        except Refused as error:
            self._said(error, "rejects lines, which are dropped")
            refused = True
        self._forget(len(lines), dropped=refused)

    def _forget(self, count: int, *, dropped: bool = False) -> None:
        with self._changed:
            for _ in range(min(count, len(self._lines))):  # `close` may have emptied the queue meanwhile
                self._lines.popleft()
            self.num_dropped += count if dropped else 0

    def _expired(self) -> bool:
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def _said(self, error: Exception, what: str) -> None:
        self.num_errors += 1
        if self.num_errors == 1:
            _log.warning("%s %s: %s: %.300s", self.service.title, what, type(error).__name__, error)
