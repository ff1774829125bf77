"""Models, and what wraps them."""
