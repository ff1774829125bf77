"""Measured decoding speeds become the table of this machine."""

from __future__ import annotations

from pathlib import Path

from rankwise.data.crops.audit.measuring import BenchReport
from rankwise.data.crops.audit.rates import rates_file, save_rate

__all__ = ["keep_rates"]


def keep_rates(report: BenchReport, path: Path | None = None) -> Path:
    """Keep the decoding speed of each group that our own decoders read; return the file."""
    path = path or rates_file()
    for group in report.groups:
        if group.fast_share == 1:
            save_rate(group.predicted.codec, group.decode_rate(report.options.audit.batch, report.audit.rates), path)
    return path
