"""checkpoint (filled in below)."""
