"""data/feed (filled in below)."""
