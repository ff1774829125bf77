"""Batches of samplers as global arrays of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.feed.place_jax import ShardRows, narrowed, shard_full_batches
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import DistributedSampler
from rankwise.data.rows.saying import say_once
from rankwise.errors import ConfigError

__all__ = ["global_batch", "sharded_batches"]


def sharded_batches(sharding: Any, sampler: Sampler, *, to: Any) -> ShardRows | None:
    """Return how batches lie in global arrays, None without a sharding.

    Args:
        sharding: ``jax.sharding.Sharding``, or None.
        sampler: of the loader; every rank has one of its own.
        to: library of the loader.

    Raises:
        ConfigError: batches need not be as long and as many on all ranks, or the sharding does not fit them.
    """
    if sharding is None:
        return None
    if to != "jax":
        raise ConfigError("sharding= is for JAX arrays: pass to='jax' with it")
    if not isinstance(sampler, DistributedSampler) or not sampler.has_equal_batches:
        raise ConfigError(
            "sharding= wants batches that are as long and as many on every rank: batch_sampler=DistributedSampler("
            "RandomSampler(...), dist_info='jax'), with any of the samplers here inside and equal batches; or "
            "order=Order(collection, batch_size=...) instead of a sampler, with weights that tell padding"
        )
    assert sampler.batch_size is not None
    rank, world_size = sampler.rank, sampler.world_size
    return shard_full_batches(sharding, batch_size=sampler.batch_size, rank=rank, world_size=world_size)


def global_batch(rows: Any, sharded: ShardRows) -> Any:
    """Return the global array of which these rows are this rank's part; no rank waits.

    Args:
        rows: numpy.ndarray or scipy.sparse.csr_matrix, one batch; a sparse one becomes dense.
        sharded: how batches lie in global arrays.

    Raises:
        ConfigError: the batch is not full.
    """
    if rows.shape[0] != sharded.num_rows:
        raise ConfigError(
            f"a batch has {rows.shape[0]} rows, and every part of a global array wants {sharded.num_rows}: pass "
            "drop_last=True to the sampler, or a num_samples that is a multiple of batch_size"
        )
    if not isinstance(rows, np.ndarray):
        say_once("X is sparse, and global arrays of JAX are dense: its rows come as dense ones")
    dense: NDArray = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return sharded.global_array(narrowed("X", dense))
