"""What a user asks of draws, with all that was left out filled in: enough to draw the same rows again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["DrawOptions", "Draws"]


class Draws(Protocol):
    """Which row each sample of an epoch is."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        ...

    @property
    def together(self) -> int:
        """Neighbouring samples that come from neighbouring rows."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the draws."""
        ...

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]. Pure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawOptions:
    """How rows are drawn; an order remembers it, and the loader draws the same.

    Attributes:
        num_samples: samples of an epoch.
        balance: an obs column whose values are equally likely; None = by weights, or as they come.
        weights: one number for each row.
        mix: share of each of several collections, in their order; None = they are not mixed.
        together: draws that come from one block of rows.
        block_rows: rows of a block: what a chunk held on average of the matrices that the order was made for.
        lanes: of a mix, in how many runs each collection is read side by side.
        window: of a mix, how many blocks of a run are mixed with each other.

    Raises:
        ConfigError: a number is out of range, or two ways of drawing are asked for at once.
    """

    num_samples: int
    balance: str | None = None
    weights: Any = None
    mix: tuple[float, ...] | None = None
    together: int = 1
    block_rows: int = 1
    lanes: int = 1
    window: int = 1

    @property
    def order_kind(self) -> str | None:
        """The kind of order that suits: of a mix of collections, which is in its order already, "sequential"."""
        return None if self.mix is None else "sequential"

    @property
    def window_samples(self) -> int | None:
        """Of a mix, how many samples the windows of all collections last together."""
        return None if self.mix is None else len(self.mix) * self.lanes * self.window * self.block_rows

    def __post_init__(self) -> None:
        if self.balance is not None and self.weights is not None:
            raise ConfigError("balance= and weights= both say how likely rows are: give one of them")
        if self.balance is None and self.weights is None and self.mix is None:
            raise ConfigError("drawn rows want one of balance= and weights=, or mix= for several collections")
        for name in ("num_samples", "together", "block_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"draws want {name} of at least 1, got {getattr(self, name)}")
        if self.together > 1 and self.balance is None and self.weights is None:
            raise ConfigError(
                "together= is for balance= and weights=: a mix of whole collections reads each chunk about once anyway"
            )
