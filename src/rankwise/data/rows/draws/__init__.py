"""Draws rows by weight, and mixes collections by shares: the row of a sample is a pure function of its number."""

from __future__ import annotations

from rankwise.data.rows.draws.interleave import Interleave
from rankwise.data.rows.draws.options import DrawOptions
from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import RowWeights

__all__ = ["DrawOptions", "Interleave", "RowDraws", "RowWeights"]
