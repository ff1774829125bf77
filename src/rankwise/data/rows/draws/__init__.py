"""Draws rows by weight, and mixes collections by shares: the row of a sample is a pure function of its number."""
