"""The progress of a run on a terminal."""
