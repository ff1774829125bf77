"""Which streams of which ranks reach the console."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rankwise.errors import ConfigError

_BITS = {"0": frozenset(), "1": frozenset({"out"}), "2": frozenset({"err"}), "3": frozenset({"out", "err"})}
_EVERY = -1  # key of the ranks that are not named


@dataclass(frozen=True, kw_only=True, slots=True)
class Show:
    """Which streams reach the console; by default the stdout of rank 0 and the stderr of every rank.

    Attributes:
        streams: rank -> "out", "err", both or none; -1 stands for every rank that is not named.
        hidden: streams removed from these (torchrun's --redirects), in the same form.
        merge: if several ranks write the same line at about the same time, show it once, with their ranks.
    """

    streams: dict[int, frozenset[str]] = field(
        default_factory=lambda: {0: frozenset({"out", "err"}), _EVERY: frozenset({"err"})}
    )
    hidden: dict[int, frozenset[str]] = field(default_factory=dict)
    merge: bool = True

    def shows(self, rank: int, stream: str) -> bool:
        """Whether a rank's "out" or "err" reaches the console."""
        hidden = self.hidden.get(rank, self.hidden.get(_EVERY, frozenset()))
        return stream in self.streams.get(rank, self.streams.get(_EVERY, frozenset())) and stream not in hidden

    def check(self, num_ranks: int) -> None:
        """Check that the named ranks exist.

        Raises:
            ConfigError: a rank is named that is not among the `num_ranks`.
        """
        beyond = [rank for rank in {*self.streams, *self.hidden} if rank >= num_ranks and rank != 0]
        if beyond:
            raise ConfigError(f"tee names rank {min(beyond)}, but this launch has ranks 0 to {num_ranks - 1}")


def parse_show(text: str, redirects: str = "0", *, merge: bool = True) -> Show:
    """Parse `--tee` (and torchrun's `--redirects`).

    Args:
        text: "auto" (stdout of rank 0, stderr of all), "all", "main" (rank 0 only), "none", or torchrun's numbers: 1 is
            stdout, 2 stderr, 3 both, 0 the same as "auto"; `3` for every rank, `0:1,1:2` for the named ones.
        redirects: torchrun's numbers; these streams go to the log files only.
        merge: as `Show.merge`.

    Raises:
        ConfigError: an unknown word, or redirects that are not in torchrun's format.
    """
    words = {
        "auto": None,
        "0": None,
        "all": {_EVERY: _BITS["3"]},
        "main": {0: _BITS["3"]},
        "none": {},
    }
    hidden = _parse_numbers(redirects, "--redirects must be")
    streams = words[text] if text in words else _parse_numbers(text, "--tee must be auto, all, main, none,")
    return Show(hidden=hidden, merge=merge) if streams is None else Show(streams=streams, hidden=hidden, merge=merge)


def _parse_numbers(text: str, wanted: str) -> dict[int, frozenset[str]]:
    if text in _BITS:
        return {_EVERY: _BITS[text]}
    pairs = [re.fullmatch(r"(\d+):([0-3])", part.strip()) for part in text.split(",")]
    if not all(pairs):
        raise ConfigError(
            f"{wanted} 0 to 3 (1 stdout, 2 stderr, 3 both), or rank:number pairs such as 0:3,1:2, got {text!r}"
        )
    return {int(pair[1]): _BITS[pair[2]] for pair in pairs if pair}
