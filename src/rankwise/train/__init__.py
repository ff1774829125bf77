"""train (filled in below)."""
