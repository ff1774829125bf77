"""TensorBoard as a sink."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import MissingExtraError
from rankwise.tracking.services.outbox import Table, with_text_tags

_log = logging.getLogger("rankwise.tracking")


class TensorBoardSink:
    """Writes scalars for TensorBoard; a resumed attempt purges the steps that became invalid.

    A failed write ends it, not the run.

    Args:
        folder: folder for the event files.

    Raises:
        MissingExtraError: torch or tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                f"tensorboard=True needs torch and tensorboard ({error}); install them with "
                "pip install 'rankwise[train,tensorboard]'"
            ) from error
        self._make = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Open an event file for this attempt."""
        self.close()
        purge = None if attempt == 1 else (0 if restored_step is None else restored_step + 1)
        self._writer = self._make(str(self._folder), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Write one scalar per value and flush; text tags other than the epoch prefix the name ("val/loss")."""
        for name, value in with_text_tags(values, tags).items():
            self._write("add_scalar", name, value, step)
        self._write("flush")

    def table(self, table: Table) -> None:
        """Write the table as text, in Markdown."""
        rows = [list(table.columns), ["---"] * len(table.columns), *zip(*table.columns.values(), strict=True)]
        text = "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
        self._write("add_text", table.name, text, table.step)
        self._write("flush")

    def close(self) -> None:
        """Flush and close the event file."""
        self._write("close")
        self._writer = None

    def _write(self, method: str, *given: Any) -> None:
        """Call a method of the writer, unless an earlier call failed: TensorBoard must not stop the run."""
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*given)
        except Exception as error:  # noqa: BLE001  (a full disk, or what a thread of the writer met)
            self._writer = None
            _log.warning(
                "%s cannot be written, so TensorBoard receives nothing more; training continues, and metrics.jsonl has "
                "all lines: %s",
                self._folder,
                error,
            )
