"""How a pass draws: its settings, sizes and draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from rankwise.data.contract import JSON, IntArray
from rankwise.errors import ConfigError

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


__all__ = ["RequestSizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSizes:
    """How many rows go together.

    Attributes:
        chunk_size: neighbouring rows that are read as one run.
        preload_nchunks: runs that are read together and mixed: one load request.
        batch_size: rows of a batch; a divisor of the rows of a request.

    Raises:
        ConfigError: they do not fit together.
    """

    chunk_size: int
    preload_nchunks: int
    batch_size: int

    def __post_init__(self) -> None:
        for name in ("chunk_size", "preload_nchunks", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        rows, batch = self.request_rows, self.batch_size
        product = f"{self.chunk_size} * {self.preload_nchunks} = {rows}"
        if batch > rows:
            raise ConfigError(
                f"batch_size cannot exceed chunk_size * preload_nchunks: got {batch}, but a request has {product} "
                f"rows; take preload_nchunks={-(-batch // self.chunk_size)} or more"
            )
        if rows % batch:
            raise ConfigError(
                f"chunk_size * preload_nchunks must be divisible by batch_size: a request has {product} rows, which "
                f"leaves {rows % batch} after batches of {batch}; take batch_size={self._nearest_divisor()}, or other "
                "sizes"
            )

    @property
    def request_rows(self) -> int:
        """Rows of a full request."""
        return self.chunk_size * self.preload_nchunks

    def num_batches(self, total: int, *, drop_last: bool) -> int:
        """Batches of a pass of `total` rows."""
        return total // self.batch_size if drop_last else -(-total // self.batch_size)

    def num_rows(self, total: int, *, drop_last: bool) -> int:
        """Rows that a pass of `total` rows hands out."""
        return total // self.batch_size * self.batch_size if drop_last else total

    def cut(self, places: IntArray) -> list[IntArray]:
        """Cut places in a request into batches."""
        return np.split(places, range(self.batch_size, len(places), self.batch_size))

    def _nearest_divisor(self) -> int:
        rows = self.request_rows
        return min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(n - self.batch_size))


__all__ = ["known_settings"]


class _HasSettings(Protocol):
    def pass_settings(self) -> Mapping[str, JSON] | None: ...


def known_settings(sampler: _HasSettings) -> Mapping[str, JSON] | None:
    """Return the settings of a sampler, None where they are not known.

    A class that inherits them and draws in its own way has settings of its own, which it would have to tell as well.
    """
    classes = type(sampler).__mro__
    telling, drawing = (
        next(place for place, one in enumerate(classes) if name in vars(one)) for name in ("pass_settings", "_sample")
    )
    return sampler.pass_settings() if telling <= drawing else None
