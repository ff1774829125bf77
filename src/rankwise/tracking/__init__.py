"""tracking (filled in below)."""
