"""Boxes of arrays: requests, reports, and conversions of values."""

from __future__ import annotations

from rankwise.data.store.boxes.request import BoxError, BoxReport, BoxRequest, Pad, sum_reports
from rankwise.data.store.boxes.values import OUTSIDE, TWICE, Runs, Spread, check_conversion, conversion_loss, converted

__all__ = [
    "OUTSIDE",
    "TWICE",
    "BoxError",
    "BoxReport",
    "BoxRequest",
    "Pad",
    "Runs",
    "Spread",
    "check_conversion",
    "conversion_loss",
    "converted",
    "sum_reports",
]
