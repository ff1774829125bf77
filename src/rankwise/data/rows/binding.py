"""Rows and an order made each for itself: the loader draws as the order does, and both must mean the same rows."""

from __future__ import annotations

from rankwise.data.contract import Order
from rankwise.data.rows.chosen import ChosenRows
from rankwise.errors import ConfigError

__all__ = ["bound_rows"]

_MEND = (
    "make both of the same: Order(collection, batch_size=...) and Loader(collection, order=...), or a part of a split "
    "in both places"
)


def bound_rows(rows: ChosenRows, order: Order) -> ChosenRows:
    """Return the samples that an order counts: these rows, drawn where the order draws.

    Raises:
        ConfigError: the order was made of other rows, or draws otherwise.
    """
    wanted = order.fingerprint
    if wanted is None or wanted == rows.fingerprint:
        return rows
    wanted_rows, _, wanted_draws = str(wanted).partition("+")
    own_rows, _, own_draws = rows.fingerprint.partition("+")
    if wanted_rows != own_rows:
        raise ConfigError(
            f"the order was made of other rows (fingerprint {wanted_rows}, {order.samples} samples an epoch) than the "
            f"loader's ({own_rows}, {rows.num_samples} samples): {_MEND}"
        )
    draw = order.draw
    if own_draws:
        said = "draws otherwise" if wanted_draws else "does not draw"
        raise ConfigError(
            f"the loader's rows are drawn, and the order {said}: make the order of the drawn rows, or pass balance=, "
            "weights=, mix=, num_samples= and together= to Order(...) alone"
        )
    if draw is None:
        raise ConfigError(f"the order draws rows in a way that it does not tell (fingerprint {wanted}): {_MEND}")
    drawn = rows.drawn(draw)
    if drawn.fingerprint != wanted:
        raise ConfigError(
            f"drawn as the order says these rows are not those of the order ({drawn.fingerprint}, not "
            f"{wanted}); the column {draw.balance!r} may have changed since: make the order anew"
        )
    return drawn
