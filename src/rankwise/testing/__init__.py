"""testing (filled in below)."""
