"""The ranks of one machine: a small supervisor in a parent that never imports torch."""
