"""data/store (filled in below)."""
