"""All known messages of distributed jobs, from `messages.toml`: pattern, meaning, solutions, and a public source."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

# How near to the root of a failure a message is: the nearest is reported first.
LEVELS = (
    "root",  # memory, hardware, drivers, broken environments: end a rank independently of the script
    "code",  # an exception of the script, or a misuse that a single rank can detect
    "data",  # loaders and checkpoints
    "setup",  # launch, rendezvous, devices
    "network",  # links and interfaces; often causes, often consequences of a dead rank
    "hang",  # mismatched collectives and timeouts: another rank is missing
    "after",  # connections that a dead rank closed
    "end",  # final messages of launchers and schedulers
    "advice",  # warnings; the job goes on
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the catalogue.

    Attributes:
        slug: its name.
        level: how near to the root it is, one of `LEVELS`.
        pattern: regular expression, searched in each line; the line has lost its terminal codes.
        meaning: what the message means in current PyTorch.
        causes: likely causes, the most likely first.
        mends: commands and arguments that solve it.
        source: a public thread with the message.
        sample: the message from there, shortened.
        literals: every matching line contains one of these texts; () for a pattern that is plain text, or several such
            texts with | between them.
        fallback: used only for lines that no other message matches.
    """

    slug: str
    level: str
    pattern: str
    meaning: str
    causes: tuple[str, ...]
    mends: tuple[str, ...]
    source: str
    sample: str
    literals: tuple[str, ...] = ()
    fallback: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Return texts of which every matching line contains one; other lines need no search for the pattern."""
        return self.literals or tuple(re.sub(r"\\(.)", r"\1", text) for text in self.pattern.split("|"))

    @property
    def distance(self) -> int:
        """Return its distance from the root, to sort by."""
        return LEVELS.index(self.level)


def _read() -> tuple[Message, ...]:
    text = resources.files(__package__).joinpath("messages.toml").read_text("utf-8")
    return tuple(_message(record) for record in tomllib.loads(text)["messages"])


def _message(record: dict[str, Any]) -> Message:
    texts = {key: tuple(value) for key, value in record.items() if isinstance(value, list)}
    return Message(**record | texts)


MESSAGES = _read()


def catalogue_table() -> str:
    """Return all messages as a Markdown table, the roots first."""
    rows = ["| name | message | seen in |", "|---|---|---|"]
    for message in sorted(MESSAGES, key=lambda message: (message.distance, message.slug)):
        sample = message.sample if len(message.sample) <= 100 else f"{message.sample[:97]}..."
        thread = message.source.removeprefix("https://github.com/")
        shown = sample.replace("|", "\\|").replace("`", "'")
        rows.append(f"| {message.slug} | `{shown}` | [{thread}]({message.source}) |")
    return "\n".join(rows) + "\n"
