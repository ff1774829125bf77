"""Writes AnnData stores in chunks of rows."""
