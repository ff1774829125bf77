"""Reads, decodes, casts and places chunks in a batch, in compiled code if possible."""
