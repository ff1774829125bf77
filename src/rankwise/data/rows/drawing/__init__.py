"""Rows drawn by weight, and collections mixed by shares: which row a sample is, as a pure function of its number."""

from __future__ import annotations

from rankwise.data.rows.drawing.draws import Interleave, MixedDraws, make_draws, settled_options
from rankwise.data.rows.drawing.options import DrawOptions, Draws, RowDraws, RowWeights

__all__ = [
    "DrawOptions",
    "Draws",
    "Interleave",
    "MixedDraws",
    "RowDraws",
    "RowWeights",
    "make_draws",
    "settled_options",
]
