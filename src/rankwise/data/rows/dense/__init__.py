"""CSR rows to dense rows."""

from __future__ import annotations

from rankwise.data.rows.dense.spreading import OUTSIDE, Crew, spread_rows

__all__ = ["OUTSIDE", "Crew", "spread_rows"]
