"""CSR rows to dense rows."""

from __future__ import annotations

from rankwise.data.rows.dense.spreading import OUTSIDE, spread_rows

__all__ = ["OUTSIDE", "spread_rows"]
