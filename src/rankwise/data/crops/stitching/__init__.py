"""Runs a model on tiles and stitches the results to whole volumes on disk."""

from __future__ import annotations

from rankwise.data.crops.stitching.stitcher import StitchedVolume, Stitcher, StitchOptions

__all__ = ["StitchOptions", "StitchedVolume", "Stitcher"]
