"""`Running`: what reads the steps of one iteration of a loader, or of one after the other, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankwise.data.feed.ahead import ReadAhead
from rankwise.data.feed.passes import Passes
from rankwise.data.feed.reader import ReadStep, StepReader

__all__ = ["Running"]


class Running:
    """Reading under way, or about to be: nothing is read before `start` or `ask`.

    Args:
        passes: the steps.
        reader: reads them.
        depth: steps that may lie ready; 0 reads in the calling thread.
        on_thread: called at the beginning of each background thread.
    """

    def __init__(
        self,
        passes: Passes,
        reader: StepReader,
        *,
        depth: int,
        on_thread: Callable[[], None] | None,
    ) -> None:
        self.passes, self._reader = passes, reader
        self._depth = depth
        self._items: Iterator[ReadStep | None] = iter(())
        self._ahead: ReadAhead | None = None
        if depth:
            self._ahead = ReadAhead(reader, passes, depth=depth, on_thread=on_thread)
        else:
            self._items = reader.read(passes)

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that was forked from the one that reads."""
        return self._ahead is not None and self._ahead.is_elsewhere

    @property
    def is_next(self) -> bool:
        """Whether what the loader would begin now can go on with this."""
        return self.passes.is_next and not self.is_elsewhere

    def start(self) -> None:
        """Read as many steps of the first pass as may lie ready, though nobody asked for it yet; returns at once."""
        if self._ahead is not None:
            self._ahead.ask(0, beyond=self._num_beyond)

    def ask(self, *, goes_on: bool) -> bool:
        """Go on with what the loader begins now; False if that is not what was foreseen.

        Args:
            goes_on: whether to read beyond it, too.
        """
        if self.is_elsewhere or not self.passes.ask(goes_on=goes_on):
            return False
        if self._ahead is not None:
            self._ahead.ask(self.passes.num_steps, beyond=self._num_beyond if goes_on else 0)
        return True

    @property
    def _num_beyond(self) -> int:
        """Steps of one pass at most: each has windows of its own, and there is memory for no more of them."""
        return min(self._depth, self.passes.num_steps)

    def take(self) -> ReadStep | None:
        """Return the next step; None when closed.

        Raises:
            Exception: what ended the reading.
        """
        return next(self._items, None) if self._ahead is None else self._ahead.take()

    def close(self) -> None:
        """Stop reading. Calling it twice is fine."""
        if self._ahead is None:
            self._reader.close()
        else:
            self._ahead.close()
