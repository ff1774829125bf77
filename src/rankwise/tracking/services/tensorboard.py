"""TensorBoard as a tracking service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankwise.errors import needs_extra
from rankwise.tracking.services.outbox import Line, RunFacts, Table


class TensorBoardSink:
    """Writes scalars for TensorBoard; a resumed attempt purges the steps that became invalid.

    Args:
        folder: folder for the event files.
    """

    title = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def load(self) -> None:
        """Import TensorBoard.

        Raises:
            MissingExtraError: torch or tensorboard is not installed.
        """
        with needs_extra(
            "tensorboard=True needs torch and tensorboard; install them with pip install 'rankwise[train,tensorboard]'"
        ):
            import torch.utils.tensorboard as _  # noqa: F401

    def connect(self, run: RunFacts, known_id: str | None) -> str:
        """Open an event file for this attempt. Event files have no id."""
        del known_id
        self._open(None if run.attempt == 1 else (0 if run.restored_step is None else run.restored_step + 1))
        return ""

    def send(self, lines: Sequence[Line]) -> None:
        """Write one scalar per value and flush."""
        with self._flushed() as writer:
            for line in lines:
                for name, value in line.values.items():
                    writer.add_scalar(name, value, line.step, walltime=line.time_ms / 1000)

    def send_table(self, table: Table) -> None:
        """Write the table as text, in Markdown."""
        rows = [list(table.columns), ["---"] * len(table.columns), *zip(*table.columns.values(), strict=True)]
        text = "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
        with self._flushed() as writer:
            writer.add_text(table.name, text, table.step)

    def finish(self, *, done: bool) -> None:
        """Close the event file."""
        del done
        if self._writer is not None:
            self._writer.close()

    def _open(self, purge_step: int | None = None) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step)
        return self._writer

    @contextlib.contextmanager
    def _flushed(self) -> Iterator[Any]:
        writer = self._writer or self._open()
        try:
            yield writer
            writer.flush()
        except BaseException:  # this one will write nothing more: the lines are sent again into another file
            self._writer = None
            with contextlib.suppress(Exception):
                writer.close()
            raise
