"""Runs a model on tiles and stitches the results to whole volumes on disk."""
