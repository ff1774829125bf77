"""`UnderWay`: one pass over a loader, from its beginning or from where it was left."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.loader.requesting import RowOrder, order_rows
from rankwise.data.rows.loader.saved import SavedPass
from rankwise.data.rows.passes import PassDraws
from rankwise.errors import ConfigError
from rankwise.world.loader_worker import current_worker

__all__ = ["WITH_AN_ORDER", "UnderWay"]

T = TypeVar("T")

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
