"""vitals (filled in below)."""
