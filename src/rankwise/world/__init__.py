"""world (filled in below)."""
