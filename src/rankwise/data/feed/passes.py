"""`Passes`: the steps of the current pass, then of the passes that are likely to come next; `Running` reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.contract import OrderState
from rankwise.data.feed.batch import ReadStep
from rankwise.data.feed.cursor import Cursor
from rankwise.data.feed.groups import Shares
from rankwise.data.feed.prefetch import ReadAhead
from rankwise.data.feed.reader import StepReader


class Passes:
    """The shares of one pass after another. A pass goes from the last step marked done to the end of its epoch.

    The reader may start before the consumer asks, and reaches the end of a pass long before the consumer does. So this
    class predicts the next pass, and `ask` says whether the prediction was right. The first pass is the one that would
    begin now. After a pass it predicts the next epoch. Exception: if no step is marked done and this pass equals the
    one before it, it predicts the same pass again, as for validation data. For the first pass of an order that is not
    shuffled, it assumes such a repetition.

    Args:
        cursor: where the loader stands.
        before: where the previous pass began; None for the first.
        goes_on: whether to predict anything after the first pass.
        worker: the DataLoader worker whose steps are wanted: every n-th of n workers; None = all steps.
    """

    def __init__(
        self, cursor: Cursor, *, before: OrderState | None, goes_on: bool, worker: LoaderWorker | None = None
    ) -> None:
        self._cursor, self._order, self._speeds = cursor, cursor.order, cursor.speeds
        self._before, self.start = before, cursor.done
        self.goes_on = goes_on
        self._worker = worker
        self._foreseen = [cursor.done]  # predicted passes that the consumer has not asked for yet
        self._num_asked, self._failed = 0, False
        # The consumer asks and the reader thread predicts. The lock keeps the number of passes asked for, the list of
        # predictions and the failure flag consistent.
        self._lock = threading.Lock()

    @property
    def num_steps(self) -> int:
        """Steps of the pass that the consumer asked for last, or will ask for first; it begins at `start`."""
        total = self._order.num_steps(self.start)
        return total if self._worker is None else len(range(self._worker.number, total, self._worker.count))

    @property
    def is_next(self) -> bool:
        """Whether the pass that the loader would begin now is the predicted one."""
        cursor = self._cursor
        same = self._order is cursor.order and self._speeds == cursor.speeds
        # no lock needed: only the consumer, which calls this, removes passes; the reader appends at the other end
        return same and self._foreseen[:1] == [cursor.done]

    def ask(self, *, goes_on: bool) -> bool:
        """Ask for the pass that the loader begins now. False if it is not the predicted one: discard these passes."""
        with self._lock:
            if self._failed or not self.is_next:
                return False
            asked = self._foreseen.pop(0)
            if self._num_asked:
                self._before, self.start = self.start, asked
            self._num_asked, self.goes_on = self._num_asked + 1, goes_on
            return True

    def __iter__(self) -> Iterator[Shares]:
        # In the reader thread. `start` moves with the second pass that is asked for; that pass is predicted below.
        number, start = 0, self.start
        while True:
            state = start
            try:
                for at in range(self._order.num_steps(start)):
                    step = self._order.step(state)
                    state = step.resume
                    if self._worker is None or self._worker.owns(at):
                        yield step, self._cursor.shares(step, self._speeds)
            except Exception:
                if self._is_asked(number):
                    raise
                return  # a consumer that asks for this pass meets the error itself
            with self._lock:
                if not self.goes_on or start == state:
                    return
                # the consumer may move `done` while this looks: a wrong prediction is never used, see `ask`
                sequential = self._order.kind == "sequential"
                again = sequential if self._before is None else self._before == self.start
                again = again and self._cursor.done == self.start
                number, start = number + 1, start if again else state
                self._foreseen.append(start)

    def _is_asked(self, number: int) -> bool:
        # If the consumer has asked before, raise the error to it. Else it finds the failure flag set, starts a new
        # reading and meets the error there. The lock leaves no third case.
        with self._lock:
            self._failed = number >= self._num_asked
            return not self._failed


class Running:
    """A reading under way or about to start: nothing is read before `start` or `ask`.

    Args:
        passes: the steps to read.
        reader: reads them.
        depth: steps that may lie ready; 0 reads in the calling thread.
        on_thread: called at the beginning of each background thread.

    Attributes:
        passes: see the arguments.
        take: returns the next step, None when closed; raises the error that ended reading.
    """

    def __init__(self, passes: Passes, reader: StepReader, *, depth: int, on_thread: Callable[[], None] | None) -> None:
        self.passes, self._reader = passes, reader
        self._depth = depth
        self._ahead: ReadAhead[Shares, ReadStep] | None = None
        self.take: Callable[[], ReadStep | None]
        if depth:
            self._ahead = ReadAhead(reader, passes, depth=depth, on_thread=on_thread)
            self.take = self._ahead.take
        else:
            self.take = partial(next, reader.read(passes), None)

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that reads."""
        return self._ahead is not None and self._ahead.is_elsewhere

    @property
    def is_next(self) -> bool:
        """Whether this reading can serve the pass that the loader would begin now."""
        return self.passes.is_next and not self.is_elsewhere

    def start(self) -> None:
        """Read as many steps of the first pass as may lie ready, before the consumer asks for it; returns at once."""
        if self._ahead is not None:
            self._ahead.ask(0, beyond=self._num_beyond)

    def ask(self, *, goes_on: bool) -> bool:
        """Continue with the pass that the loader begins now; False if it is not the predicted one.

        Args:
            goes_on: whether to read beyond this pass, too.
        """
        if self.is_elsewhere or not self.passes.ask(goes_on=goes_on):
            return False
        if self._ahead is not None:
            self._ahead.ask(self.passes.num_steps, beyond=self._num_beyond if goes_on else 0)
        return True

    @property
    def _num_beyond(self) -> int:
        """Limit prefetch to one pass: each pass has windows of its own, and there is memory for one more pass only."""
        return min(self._depth, self.passes.num_steps)

    def close(self) -> None:
        """Stop reading. Calling it twice is fine."""
        if self._ahead is None:
            self._reader.close()
        else:
            self._ahead.close()
