"""Collectives of a world: trees, objects and barriers, over a process group or a key-value store."""
