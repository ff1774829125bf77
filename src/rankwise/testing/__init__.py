"""For tests: real gloo ranks, reused across the cases of a file, and faults on demand. Only tests import it."""

from rankwise.testing.ranks import RanksFailedError, close_pools, run_ranks

__all__ = ["RanksFailedError", "close_pools", "run_ranks"]
