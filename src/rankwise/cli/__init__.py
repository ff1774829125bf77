"""cli (filled in below)."""
