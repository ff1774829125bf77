"""Which rank sees which samples, and who counts them."""
