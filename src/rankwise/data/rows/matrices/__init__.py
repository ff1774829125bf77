"""Concatenated matrices of AnnData stores, read by row."""
