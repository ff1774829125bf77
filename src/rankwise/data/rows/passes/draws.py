"""The random numbers of one pass: a function of a seed and the number of the epoch, so that none has to be replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

__all__ = ["PassDraws", "Rng", "fresh_seed", "make_generator"]

Rng: TypeAlias = np.random.Generator | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDraws:
    """Where the random numbers of one pass come from.

    Attributes:
        seed: of the sampler.
        epoch: number of the pass.
        salt: tells passes with the same number apart; 0 where the number says it all.
    """

    seed: int
    epoch: int
    salt: int = 0

    @property
    def is_odd(self) -> bool:
        """Whether this is an odd pass; neighbouring epochs take turns."""
        return (self.epoch + self.salt) % 2 == 1

    def whole(self) -> np.random.Generator:
        """Return a new generator for what concerns the whole pass."""
        return self._generator(0)

    def request(self, number: int) -> np.random.Generator:
        """Return a new generator for one load request: requests can be drawn in any order, by any worker."""
        return self._generator(1 + number)

    def _generator(self, key: int) -> np.random.Generator:
        sequence = np.random.SeedSequence([self.seed, self.epoch, self.salt], spawn_key=(key,))
        return np.random.default_rng(sequence)


def make_generator(rng: Rng) -> np.random.Generator:
    """Return the generator that `rng` names: itself, one for a seed (0 is a seed), or a new unseeded one for None.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        return np.random.default_rng(rng)
    raise TypeError(f"rng wants a numpy.random.Generator, a whole number as seed, or None; got {type(rng).__name__}")


def fresh_seed(rng: np.random.Generator | None) -> int:
    """Draw a seed from a generator, or from the system where there is none."""
    return int((np.random.default_rng() if rng is None else rng).integers(2**63))
