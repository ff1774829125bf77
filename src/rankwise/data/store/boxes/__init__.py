"""Boxes out of arrays: what is asked for, how it is planned, how it is read."""

from __future__ import annotations

from rankwise.data.store.boxes.request import BoxError, BoxReport, BoxRequest, Pad
from rankwise.data.store.boxes.runs import Runs
from rankwise.data.store.boxes.spread import OUTSIDE, TWICE, Spread
from rankwise.data.store.boxes.summing import sum_reports
from rankwise.data.store.boxes.values import check_conversion, conversion_loss, converted

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
