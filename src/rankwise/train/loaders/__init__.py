"""Loaders: those of others, streams of unknown length, and whether all ranks have the same."""
