"""The model: wrapped over the ranks, sharded, or not wrapped; statistics over all ranks; what surrounds a pass."""
