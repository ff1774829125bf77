"""Splits data into parts: by a hash of group names (stable when data are added), in exact sizes, or by name."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias, TypeVar

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, sample_keys
from rankwise.errors import ConfigError

Made = TypeVar("Made")
Groups: TypeAlias = Mapping[str, Sequence[object] | EllipsisType]

_SUM_TOLERANCE = 1e-9
_OTHERS = "train"  # the part for groups that no list names
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """A split as the user requests it: the parts, and what belongs to each.

    Attributes:
        names: of the parts.
        fractions: sizes of the parts that share what no list names; these parts are the last ones of `names`.
        members: for each of the other parts, the names of its groups.
        exact: whether parts have exactly the requested sizes, rather than staying stable when data are added.
        seed: another seed gives another split.
        by_name: whether to return the parts by name, or in order.
    """

    names: tuple[str, ...]
    fractions: tuple[float, ...]
    members: tuple[tuple[str, ...], ...] = ()
    exact: bool = False
    seed: int
    by_name: bool

    @classmethod
    def of(
        cls,
        fractions: Mapping[str, float] | Sequence[float] | None,
        groups: Groups | None,
        *,
        exact: bool,
        seed: int,
    ) -> SplitRule:
        """Return the rule for the arguments that a user passes.

        Args:
            fractions: sizes of parts, by name or in order; None = "train" gets all that `groups` does not name.
            groups: ``{part: names of groups}``; ``...`` instead of a list = all that no list names.
            exact: see the attribute.
            seed: see the attribute.

        Raises:
            ConfigError: both are missing, they contradict each other, or a group is in two parts.
        """
        if fractions is not None:
            _checked(fractions.values() if isinstance(fractions, Mapping) else fractions)
        if not groups:
            if fractions is None:
                raise ConfigError('a split needs fractions={"train": 0.8, "val": 0.2}, groups={"val": [...]}, or both')
            named = isinstance(fractions, Mapping)
            names = tuple(map(str, fractions)) if named else tuple(f"part {k}" for k in range(len(fractions)))
            sizes = tuple(fractions.values()) if isinstance(fractions, Mapping) else tuple(fractions)
            return cls(names=names, fractions=sizes, exact=exact, seed=seed, by_name=named)
        listed = {str(name): _listed(name, held) for name, held in groups.items() if held is not ...}
        others = {str(name): 1.0 for name, held in groups.items() if held is ...}
        if fractions is not None:
            if not isinstance(fractions, Mapping) or others:
                raise ConfigError(
                    "with groups=, fractions divide the rest, which groups= does not list: pass them by name, "
                    'fractions={"train": 0.9, "test": 0.1}, and do not use `...` in groups='
                )
            others = {str(name): size for name, size in fractions.items()}
        elif not others and _OTHERS not in listed:
            others = {_OTHERS: 1.0}
        _refuse_twice(listed, others)
        members = tuple(listed.values())
        return cls(
            names=(*listed, *others), fractions=tuple(others.values()), members=members,
            exact=exact, seed=seed, by_name=True,
        )  # fmt: skip

    @property
    def asked(self) -> tuple[float | None, ...]:
        """The fraction of each part, or None for all parts if any groups were named."""
        return (*[None] * len(self.members), *(None if self.members else size for size in self.fractions))

    def parts(self, labels: Sequence[str], strata: IntArray | None = None) -> IntArray:
        """Return the part of each group, int64[G]; len(names) = in no part.

        Args:
            labels: names of the groups, without duplicates.
            strata: int64[G], the stratum of each group: every part gets its fraction of each stratum; None = no strata.

        Raises:
            ConfigError: fractions are out of range, or a named group does not exist.
        """
        found = np.full(len(labels), len(self.names), dtype=np.int64)
        place = {label: number for number, label in enumerate(labels)}
        for part, named in enumerate(self.members):
            unknown = [label for label in named if label not in place]
            if unknown:
                raise ConfigError(
                    f"groups= names {len(unknown)} groups for {self.names[part]!r} that do not exist, such as "
                    f"{unknown[:_SHOWN]}; there are {len(labels)} groups, such as {list(labels[:_SHOWN])}"
                )
            found[[place[label] for label in named]] = part
        if self.fractions:
            left = np.flatnonzero(found == len(self.names))
            places = np.array([place_of_group(labels[number], self.seed) for number in left.tolist()])
            found[left] = len(self.members) + self.shared_out(places, None if strata is None else strata[left])
        return found

    def shared_out(self, places: FloatArray, strata: IntArray | None = None) -> IntArray:
        """Return the part of each place, counting only parts with fractions, int64; len(fractions) = in no part.

        Raises:
            ConfigError: fractions are out of range.
        """
        if self.exact or strata is not None:
            return exact_parts(places, self.fractions, strata)
        return part_at(places, self.fractions)

    def log_sizes(self, log: logging.Logger, by: str, sizes: Sequence[int], total: int, words: Sequence[str]) -> None:
        """Log the sizes of the parts; with few groups, hashes seldom give the requested sizes.

        Args:
            log: where.
            by: what was split by.
            sizes: of the parts, in the unit of `total`.
            total: what was split.
            words: for each part its size in words.

        Raises:
            ConfigError: a part is empty.
        """
        listing = zip(self.names, words, self.asked, strict=True)
        text = ", ".join(f"{n}: {w}{'' if asked is None else f' (asked for {asked:.3g})'}" for n, w, asked in listing)
        empty = [name for name, size in zip(self.names, sizes, strict=True) if size == 0]
        if empty:
            few = "use" if self.exact else "these are too few for a split by hash: use exact=True,"
            raise ConfigError(
                f"the split by {by} leaves {', '.join(empty)} empty ({text}); {few} another seed, larger fractions or "
                "smaller groups"
            )
        log.info("split by %s: %s", by, text)
        asked = ((size, fraction) for size, fraction in zip(sizes, self.asked, strict=True) if fraction is not None)
        if not self.exact and any(abs(size / total - fraction) > fraction / 2 for size, fraction in asked):
            warnings.warn(
                f"the split by {by} is far from the requested one: {text}; exact=True counts instead of drawing",
                stacklevel=4,
            )

    def handed_out(self, made: Sequence[Made]) -> dict[str, Made] | tuple[Made, ...]:
        """Return one result per part in the requested form: by name, or in order."""
        return dict(zip(self.names, made, strict=True)) if self.by_name else tuple(made)


def _listed(part: object, held: object) -> tuple[str, ...]:
    if isinstance(held, (str, bytes)) or not hasattr(held, "__iter__"):
        raise ConfigError(f"groups= needs a list of names for each part, got {held!r} for {part!r}: write [{held!r}]")
    return tuple(dict.fromkeys(map(str, held)))


def _refuse_twice(listed: Mapping[str, Sequence[str]], others: Mapping[str, float]) -> None:
    both = [name for name in others if name in listed]
    if both:
        raise ConfigError(f"the part {both[0]!r} has both a list of groups and a fraction: give only one")
    seen: dict[str, str] = {}
    for part, members in listed.items():
        for label in members:
            if label in seen:
                raise ConfigError(f"groups= puts {label!r} into both {seen[label]!r} and {part!r}: list it once")
            seen[label] = part


def part_at(places: FloatArray, fractions: Sequence[float]) -> IntArray:
    """Return the part of each place, int64; len(fractions) = in no part.

    Parts are consecutive intervals of [0, 1), as long as their fractions.

    Args:
        places: float64, in [0, 1).
        fractions: sizes of the parts, with a sum of at most 1; the rest is in no part.

    Raises:
        ConfigError: fractions are out of range.
    """
    bounds = np.cumsum(_checked(fractions))
    if abs(bounds[-1] - 1) <= _SUM_TOLERANCE:
        bounds[-1] = 1.0  # rounding of the sum must not leave a gap at the end
    return np.searchsorted(bounds, places, side="right").astype(np.int64)


def exact_parts(places: FloatArray, fractions: Sequence[float], strata: IntArray | None = None) -> IntArray:
    """Return the part of each place, int64, with exact part sizes; len(fractions) = in no part.

    Counts are rounded by the largest remainder: each is its fraction of the total, rounded down or up. Places are
    sorted; the first ones go to the first part, and so on. With strata this holds inside each stratum. A stratum gives
    its rounding remainder to the parts that lack most over all strata, so that totals are rounded well, too.

    Args:
        places: float64, used only for sorting.
        fractions: sizes of the parts, with a sum of at most 1; the rest is in no part.
        strata: int64, the stratum of each place; None = one stratum.

    Raises:
        ConfigError: fractions are out of range.
    """
    held = _checked(fractions)
    shares = np.append(held, max(0.0, 1 - held.sum()))
    found = np.full(len(places), len(held), dtype=np.int64)
    of = np.zeros(len(places), dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
    sizes = np.bincount(of, minlength=1)
    quotas = sizes[:, None] * shares
    counts = np.floor(quotas + _SUM_TOLERANCE).astype(np.int64)
    lacking = _rounded(len(places) * shares, len(places)) - counts.sum(axis=0)
    for stratum, left in enumerate((sizes - counts.sum(axis=1)).tolist()):
        for _ in range(left):
            over = quotas[stratum] - counts[stratum]
            part = int(np.lexsort((over, lacking, over > _SUM_TOLERANCE))[-1])  # the last key sorts first
            counts[stratum, part] += 1
            lacking[part] -= 1
    order = np.lexsort((places, of))
    found[order] = np.repeat(np.tile(np.arange(len(shares)), len(sizes)), counts.ravel())
    return found


def _rounded(quotas: FloatArray, total: int) -> IntArray:
    """Return integers that add up to `total`: the largest remainders are rounded up."""
    counts: IntArray = np.floor(quotas + _SUM_TOLERANCE).astype(np.int64)
    up = np.argsort(counts - quotas, kind="stable")[: total - int(counts.sum())]
    counts[up] += 1
    return counts


def _checked(fractions: Iterable[float]) -> FloatArray:
    sizes = list(fractions)
    if not sizes or not all(size > 0 for size in sizes) or sum(sizes) > 1 + _SUM_TOLERANCE:
        raise ConfigError(f"fractions must be above 0 and at most 1 together, got {sizes}")
    return np.asarray(sizes, dtype=np.float64)


def place_of_group(group: str, seed: int) -> float:
    """Return the place of a group in [0, 1): a keyed hash of its name."""
    digest = hashlib.blake2b(f"{int(seed)}\n{group}".encode(), digest_size=8, person=b"rankwise-split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def place_of_samples(samples: IntArray, seed: int) -> FloatArray:
    """Return the places of samples in [0, 1), float64: a keyed hash of their numbers."""
    words = sample_keys(seed, 0, samples).view(np.uint64) >> np.uint64(11)
    places: FloatArray = words.astype(np.float64) * 2.0**-53
    return places
