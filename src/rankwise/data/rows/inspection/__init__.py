"""Inspects stores of rows: content, reading costs, integrity."""

from __future__ import annotations

from rankwise.data.rows.inspection.description import decode_factor, describe_rows, text_of_rows
from rankwise.data.rows.inspection.verification import verify_rows

__all__ = ["decode_factor", "describe_rows", "text_of_rows", "verify_rows"]
