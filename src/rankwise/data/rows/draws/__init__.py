"""Draws rows by weight, and mixes collections by shares: the row of a sample is a pure function of its number."""

from __future__ import annotations

from rankwise.data.rows.draws.row_draws import Interleave, RowDraws
from rankwise.data.rows.draws.weights import LEAST_LANES, MOST_LANES, DrawOptions, RowWeights

__all__ = ["LEAST_LANES", "MOST_LANES", "DrawOptions", "Interleave", "RowDraws", "RowWeights"]
