"""`Passes`: the steps of the pass that was asked for, and after them those that are likely to be asked for next.

`Repeats` says when an epoch is shown a second time in the same order, which a loop without `mark_done` does not mean.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.contract import Order, OrderState
from rankwise.data.feed.cursor import Cursor, is_sequential
from rankwise.data.feed.groups import Shares

__all__ = ["Passes", "Repeats"]

_LOG = logging.getLogger("rankwise.data")


class Passes:
    """The shares of one pass after the other. A pass goes from the last step marked done to the end of its epoch.

    Who reads them may begin before they are asked for, and gets to the end of a pass long before who uses them does:
    what follows is foreseen, and `ask` tells whether it came so. First comes the pass that would begin now. After a
    pass the next epoch follows, unless no step is marked done and this pass was the same as the one before it: then it
    comes once more, as held-out data do. Without one before it that is taken for granted where the order is not
    shuffled.

    Args:
        cursor: where the loader stands.
        before: where the pass before this one began, None for the first.
        goes_on: whether anything is foreseen after the first pass.
        worker: of a DataLoader, whose steps alone are wanted: every so-many-th; None = all.
    """

    def __init__(
        self, cursor: Cursor, *, before: OrderState | None, goes_on: bool, worker: LoaderWorker | None = None
    ) -> None:
        self._cursor, self._order, self._speeds = cursor, cursor.order, cursor.speeds
        self._before, self.start = before, cursor.done
        self.goes_on = goes_on
        self._worker = worker
        self._foreseen = [cursor.done]  # passes that nobody asked for yet
        self._num_asked, self._failed = 0, False
        # The consumer asks and the reader's thread foresees: what was asked for, what is foreseen and whether it has
        # failed change together.
        self._lock = threading.Lock()

    @property
    def num_steps(self) -> int:
        """Steps of the pass that was asked for last, or will be asked for first; it begins at `start`."""
        total = self._order.num_steps(self.start)
        return total if self._worker is None else len(range(self._worker.number, total, self._worker.count))

    @property
    def is_next(self) -> bool:
        """Whether what the loader would begin now is what was foreseen."""
        cursor = self._cursor
        same = self._order is cursor.order and self._speeds == cursor.speeds
        # without the lock: only who asks here takes passes off the list, and the reader adds to its other end
        return same and self._foreseen[:1] == [cursor.done]

    def ask(self, *, goes_on: bool) -> bool:
        """Ask for what the loader begins now. False if that is not what was foreseen: these passes are over then."""
        with self._lock:
            if self._failed or not self.is_next:
                return False
            asked = self._foreseen.pop(0)
            if self._num_asked:
                self._before, self.start = self.start, asked
            self._num_asked, self.goes_on = self._num_asked + 1, goes_on
            return True

    def __iter__(self) -> Iterator[Shares]:
        # In the reader's thread. `start` moves with the second pass that is asked for, which is foreseen further down.
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
                return  # who asks for it sees it
            following = self._foresee(start, state)
            if following is None:
                return
            number, start = number + 1, following

    def _is_asked(self, number: int) -> bool:
        # Either the consumer asks first, and the error is raised to him; or he finds that this has failed, and begins a
        # reading of his own, which meets the error itself. It cannot fall between the two.
        with self._lock:
            self._failed = number >= self._num_asked
            return not self._failed

    def _foresee(self, start: OrderState, end: OrderState) -> OrderState | None:
        with self._lock:
            if not self.goes_on or start == end:
                return None
            # `done` is the consumer's and may move while this looks: what is foreseen wrongly is never taken, see `ask`
            sequential = self._order.kind == "sequential"
            again = sequential if self._before is None else self._before == self.start
            again = again and self._cursor.done == self.start
            self._foreseen.append(start if again else end)
            return self._foreseen[-1]


class Repeats:
    """Remembers the last pass of a loader, and says once that the next one is the same.

    Args:
        order: orders that are not shuffled are the same in every epoch.
        rank: rank 0 speaks.
    """

    def __init__(self, order: Order, *, rank: int) -> None:
        self._quiet = rank != 0 or is_sequential(order)
        self._shown: OrderState | None = None

    def begins(self, start: OrderState, *, chosen: bool) -> None:
        """Look at a pass that begins.

        Args:
            start: where.
            chosen: whether the caller named this epoch, as an evaluation does each time: then it is meant so.
        """
        if self._quiet or chosen or self._shown != start:
            return
        self._quiet = True
        _LOG.warning(
            "epoch %d was shown whole and no step of it was marked done: the same batches come once more. For the next "
            "epoch call loader.mark_done(batch.resume) after each step, or loader.set_epoch(n); of held-out data "
            'Order(..., kind="sequential") says that it is meant so',
            start.epoch,
        )

    def ends(self, start: OrderState, *, whole: bool) -> None:
        """Remember a pass that ends."""
        self._shown = start if whole else None
