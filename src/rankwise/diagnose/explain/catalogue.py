"""All messages, and their table."""

from __future__ import annotations

from rankwise.diagnose.explain import checkpoints, collectives, launchers, memory, models
from rankwise.diagnose.explain.message import Message

__all__ = ["MESSAGES", "catalogue_table"]

MESSAGES: tuple[Message, ...] = (
    *launchers.MESSAGES,
    *collectives.MESSAGES,
    *models.MESSAGES,
    *memory.MESSAGES,
    *checkpoints.MESSAGES,
)


def catalogue_table() -> str:
    """Return all messages as a Markdown table, the roots first."""
    rows = ["| name | message | seen in |", "|---|---|---|"]
    for message in sorted(MESSAGES, key=lambda message: (message.rank_of_cause, message.slug)):
        sample = message.sample if len(message.sample) <= 100 else f"{message.sample[:97]}..."
        thread = message.source.removeprefix("https://github.com/")
        shown = sample.replace("|", "\\|").replace("`", "'")
        rows.append(f"| {message.slug} | `{shown}` | [{thread}]({message.source}) |")
    return "\n".join(rows) + "\n"
