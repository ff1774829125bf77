"""A log message of distributed jobs: pattern, meaning, solutions, and a public source."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ADVICE", "AFTER", "CODE", "DATA", "END", "HANG", "NETWORK", "ROOT", "SETUP", "Message"]

# How near to the root of a failure a message is: the lowest value is reported first.
ROOT = 10  # memory, hardware, drivers, broken environments: end a rank independently of the script
CODE = 20  # an exception of the script, or a misuse that a single rank can detect
DATA = 30  # loaders and checkpoints
SETUP = 40  # launch, rendezvous, devices
NETWORK = 50  # links and interfaces; often causes, often consequences of a dead rank
HANG = 60  # mismatched collectives and timeouts: another rank is missing
AFTER = 70  # connections that a dead rank closed
END = 80  # final messages of launchers and schedulers
ADVICE = 90  # warnings; the job goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the catalogue.

    Attributes:
        slug: its name.
        pattern: regular expression, searched in each line; the line has lost its terminal codes.
        meaning: what the message means in current PyTorch.
        causes: likely causes, the most likely first.
        mends: commands and arguments that solve it.
        source: a public thread with the message.
        sample: the message from there, shortened.
        rank_of_cause: how near to the root it is; lower is reported first.
        literals: every matching line contains one of these texts; () for a pattern that is plain text, or several such
            texts with | between them.
        fallback: used only for lines that no other message matches.
    """

    slug: str
    pattern: str
    meaning: str
    causes: tuple[str, ...]
    mends: tuple[str, ...]
    source: str
    sample: str
    rank_of_cause: int
    literals: tuple[str, ...] = ()
    fallback: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Return texts of which every matching line contains one; other lines need no search for the pattern."""
        return self.literals or tuple(re.sub(r"\\(.)", r"\1", text) for text in self.pattern.split("|"))
