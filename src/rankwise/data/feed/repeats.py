"""Say when an epoch is shown a second time in the same order, which a loop without `mark_done` does not mean."""

from __future__ import annotations

import logging

from rankwise.data.contract import Order, OrderState

__all__ = ["Repeats", "is_sequential"]

_LOG = logging.getLogger("rankwise.data")


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


def is_sequential(order: Order) -> bool:
    """Whether each epoch of an order is the same, and meant so."""
    return order.kind == "sequential" and order.draw is None
