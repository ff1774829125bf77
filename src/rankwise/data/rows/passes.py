"""One pass of a sampler: its random numbers and its range of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rankwise.errors import ConfigError

Rng: TypeAlias = np.random.Generator | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDraws:
    """The source of random numbers for one pass."""

    seed: int
    epoch: int
    salt: int = 0  # distinguishes passes with the same number; 0 if the number is enough

    @property
    def is_odd(self) -> bool:
        """Whether the epoch is odd; neighbouring epochs alternate."""
        return (self.epoch + self.salt) % 2 == 1

    def generator(self, *, request: int = -1) -> np.random.Generator:
        """Return a new generator for one load request, so that any worker can draw requests in any order.

        Without a request it is the generator for the whole pass.
        """
        sequence = np.random.SeedSequence([self.seed, self.epoch, self.salt], spawn_key=(1 + request,))
        return np.random.default_rng(sequence)


def make_generator(rng: Rng) -> np.random.Generator:
    """Return the generator for `rng`: itself, a new one for a seed (0 is a seed), or a new unseeded one for None.

    Raises:
        TypeError: it is anything else.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        return np.random.default_rng(rng)
    raise TypeError(f"rng must be a numpy.random.Generator, an integer seed, or None; got {type(rng).__name__}")


def fresh_seed(rng: np.random.Generator | None) -> int:
    """Draw a seed from a generator, or from the system without one."""
    return int((np.random.default_rng() if rng is None else rng).integers(2**63))


def check_mask(mask: slice) -> slice:
    """Return a mask with an integer start.

    Raises:
        TypeError: it is not a slice.
        ConfigError: it is not a contiguous range, starts below 0, or is empty.
    """
    if not isinstance(mask, slice):
        raise TypeError(f"mask must be a slice of rows, such as slice(0, 1000); got {type(mask).__name__}")
    start, stop = mask.start or 0, mask.stop
    if mask.step not in (None, 1):
        raise ConfigError(f"mask.step must be 1: a mask is one contiguous range; got {mask}")
    if start < 0 or (stop is not None and stop < 0):
        raise ConfigError(f"mask.start and mask.stop must be >= 0, counted from the first row; got {mask}")
    if stop is not None and start >= stop:
        raise ConfigError(f"mask.start must be < mask.stop, or no row is left; got {mask}")
    return slice(start, stop)


def mask_bounds(mask: slice, n_obs: int) -> tuple[int, int]:
    """Return the first row of a mask, and the row after its last."""
    checked = check_mask(mask)
    if n_obs == 0:
        raise ConfigError("the loader has no rows: add data first, with use_collection, add_adata or add_dataset")
    start = int(checked.start)
    stop = n_obs if checked.stop is None else int(checked.stop)
    if stop > n_obs:
        raise ConfigError(
            f"mask.stop ({stop}) exceeds the {n_obs} rows of the loader: make the mask smaller, or add the data first"
        )
    if start >= stop:
        raise ConfigError(f"mask.start ({start}) leaves no row: the loader has {n_obs} rows; move the mask")
    return start, stop
