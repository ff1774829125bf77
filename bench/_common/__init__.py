"""Shared by the benchmarks: worker processes, statistics of paired rounds, goals, and the machine."""
