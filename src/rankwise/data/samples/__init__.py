"""data/samples (filled in below)."""
