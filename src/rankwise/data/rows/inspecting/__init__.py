"""Looking at stores of rows: what they hold, what reading costs, whether they are whole."""

from __future__ import annotations

from rankwise.data.rows.inspecting.description import decode_factor, describe_rows, text_of_rows
from rankwise.data.rows.inspecting.verification import verify_rows

__all__ = ["decode_factor", "describe_rows", "text_of_rows", "verify_rows"]
