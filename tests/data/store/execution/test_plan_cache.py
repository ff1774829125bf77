"""Which decoded chunks are kept."""

from rankwise.data.store import ChunkCache
from rankwise.data.store.cache import PlanCache


def test_what_never_comes_back_is_not_kept():
    """A stream of different chunks keeps none of them: no memory is written for nothing."""
    plan_cache = PlanCache(ChunkCache(10**6))
    assert not any(plan_cache.wants([k], 1000)[0] for k in range(5000))


def test_what_comes_back_is_kept():
    """The second touch of a chunk keeps it."""
    plan_cache = PlanCache(ChunkCache(10**6))
    assert not plan_cache.wants(["a"], 1000)[0]
    assert plan_cache.wants(["a"], 1000)[0]


def test_many_repeats_keep_everything():
    """Once a fair share of touches repeats, chunks are kept at their first touch."""
    plan_cache = PlanCache(ChunkCache(10**6))
    for _ in range(200):
        plan_cache.wants([], 1000, num_found=1)
    assert plan_cache.wants(["never seen"], 1000)[0]


def test_larger_than_the_cache_is_never_kept():
    """What cannot stay is not copied."""
    plan_cache = PlanCache(ChunkCache(1000))
    assert not any(plan_cache.wants(["a"], 2000)[0] for _ in range(3))
