"""For tests only: real gloo ranks, reused by the tests of a file; faults on demand; small data."""

from rankwise.testing.faults import Fault
from rankwise.testing.ranks import RanksFailedError, close_pools, run_ranks
from rankwise.testing.small import ArrayBatch, ArrayLoader

__all__ = ["ArrayBatch", "ArrayLoader", "Fault", "RanksFailedError", "close_pools", "run_ranks"]
