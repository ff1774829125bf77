"""Batches of rows of datasets, drawn by a sampler."""
