"""data/order (filled in below)."""
