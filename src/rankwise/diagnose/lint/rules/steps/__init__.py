"""Steps of training, and the collectives in them."""
