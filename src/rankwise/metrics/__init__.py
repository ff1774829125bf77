"""metrics (filled in below)."""
