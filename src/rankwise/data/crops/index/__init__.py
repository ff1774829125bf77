"""Numbers all crops of a catalogue, and reads them in the sequence of an order."""

from __future__ import annotations

from rankwise.data.crops.index.crop_index import CropIndex, CropPlace
from rankwise.data.crops.index.image import CropImage, Level, Take, plain_level
from rankwise.data.crops.index.rules import Foreground, Mask, Stage

__all__ = ["CropImage", "CropIndex", "CropPlace", "Foreground", "Level", "Mask", "Stage", "Take", "plain_level"]
