"""For tests: real gloo ranks, reused across the cases of a file, and small data. Only tests import it."""

from rankwise.testing.ranks import RanksFailedError, close_pools, run_ranks
from rankwise.testing.small import ArrayBatch, ArrayLoader

__all__ = ["ArrayBatch", "ArrayLoader", "RanksFailedError", "close_pools", "run_ranks"]
