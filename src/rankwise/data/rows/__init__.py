"""Observations out of on-disk AnnData collections as batches, and writing the collections."""
