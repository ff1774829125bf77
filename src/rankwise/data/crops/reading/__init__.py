"""Reads boxes into the fields of a batch: fields, their boxes, and the reader of both kinds of pipeline."""

from __future__ import annotations

from rankwise.data.crops.reading.field import CropField, FieldBoxes, Scaling
from rankwise.data.crops.reading.reader import CropReader
from rankwise.data.crops.reading.report import CropPlan, CropReport

__all__ = ["CropField", "CropPlan", "CropReader", "CropReport", "FieldBoxes", "Scaling"]
