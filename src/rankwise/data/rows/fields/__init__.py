"""The fields of a row: matrices as stored, or converted for the batch."""

from __future__ import annotations

from rankwise.data.rows.fields.row_field import RowField, make_field, read_fields
from rankwise.data.rows.fields.variables import FieldChoice, RowFields, chosen_genes, open_fields

__all__ = ["FieldChoice", "RowField", "RowFields", "chosen_genes", "make_field", "open_fields", "read_fields"]
