"""A message that logs of distributed jobs hold: what it says, what it means, what to do, and who met it in public."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ADVICE", "AFTER", "CODE", "DATA", "END", "HANG", "NETWORK", "ROOT", "SETUP", "Message"]

# How near to the root of a failure a message stands: where several are in one log, the lowest is told first.
ROOT = 10  # memory, hardware, drivers, broken environments: they end a rank whatever the script does
CODE = 20  # an exception of the script, or a misuse that one rank can know alone
DATA = 30  # loaders and checkpoints
SETUP = 40  # launch, rendezvous, devices
NETWORK = 50  # links and interfaces; often true causes, often the echo of a rank that died
HANG = 60  # collectives that differ, and time-outs: another rank has not come
AFTER = 70  # connections that a dead rank closed
END = 80  # what launchers and schedulers say when it is over
ADVICE = 90  # warnings; the job goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the catalogue.

    Attributes:
        slug: its name.
        pattern: regular expression, searched in each line; the line has lost its terminal codes.
        literals: every line with a match holds one of these texts; lines without are not looked at.
        meaning: what the message says, in today's PyTorch.
        causes: the likely ones, likeliest first.
        mends: commands and arguments.
        source: the public thread in which the message stands.
        sample: the message as it stands there, shortened.
        rank_of_cause: how near to the root it stands; lower is told first.
        fallback: only tried on lines that no other message explains.
    """

    slug: str
    pattern: str
    literals: tuple[str, ...]
    meaning: str
    causes: tuple[str, ...]
    mends: tuple[str, ...]
    source: str
    sample: str
    rank_of_cause: int
    fallback: bool = False
