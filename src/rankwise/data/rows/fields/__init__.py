"""The fields of a row: matrices as stored, or converted for the batch."""
