"""Collections: making them, adding to them, describing them."""
