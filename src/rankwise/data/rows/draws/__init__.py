"""Draws rows by weight, and mixes collections by shares: the row of a sample is a pure function of its number."""

from __future__ import annotations

from rankwise.data.rows.draws.mixes import Draws, Interleave, MixedDraws, make_draws, settled_options
from rankwise.data.rows.draws.weights import DrawOptions, RowDraws, RowWeights

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
