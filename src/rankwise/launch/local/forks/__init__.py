"""Ranks that are forked from one process, which has imported for all of them what they import first."""
