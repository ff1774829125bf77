"""CSR rows to dense rows."""

from __future__ import annotations

from rankwise.data.rows.dense.spreading import spread_rows

__all__ = ["spread_rows"]
