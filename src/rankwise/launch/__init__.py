"""launch (filled in below)."""
