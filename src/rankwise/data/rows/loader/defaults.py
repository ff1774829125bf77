"""Defaults of a loader: its sampler, warnings about workers, and the library of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import NDArray
from rankwise.data.feed.memory.csr import torch_csr
from rankwise.data.feed.place import tensor_over
from rankwise.data.feed.place_jax import ShardRows, narrowed, shard_full_batches
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.notices import warn_once
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import ConfigError, MissingExtraError

_DEFAULTS = {"chunk_size": 512, "preload_nchunks": 32, "batch_size": 1, "drop_last": False}


def choose_sampler(sampler: Sampler | None, arguments: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a loader: the given one, or one made of `arguments`, None for those not passed.

    Raises:
        ConfigError: both were passed, or they do not fit together.
        TypeError: `sampler` is not a Sampler.
    """
    passed = [name for name, value in arguments.items() if value is not None]
    if sampler is not None:
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"batch_sampler must be a sampler of rankwise.data.rows.samplers, or a subclass of "
                f"rankwise.data.rows.abc.Sampler, got {type(sampler).__name__}"
            )
        if passed:
            raise ConfigError(
                f"Cannot specify {', '.join(passed)} when providing batch_sampler: pass them to the sampler instead"
            )
        return sampler
    sizes: dict[str, Any] = {
        name: default if arguments[name] is None else arguments[name] for name, default in _DEFAULTS.items()
    }
    if arguments["shuffle"]:
        return RandomSampler(**sizes, rng=arguments["rng"])
    if arguments["shuffle"] is None:
        warn_once("rows are read in their stored order: pass shuffle=True (or shuffle=False to silence this warning)")
    return SequentialSampler(**sizes)


def warn_idle_workers(sampler: Sampler) -> None:
    """Warn, in the one DataLoader worker that reads everything, why the others are idle."""
    worker = current_worker()
    if worker is None or worker.number or worker.count == 1 or sampler.handles_workers or sampler.rng is not None:
        return
    warn_once(
        f"one of {worker.count} workers reads everything: {type(sampler).__name__} has no rng, so the workers may "
        "draw differently; assign one and draw from self.rng, or use num_workers=1"
    )


def warn_no_batch(sampler: Sampler, n_obs: int) -> None:
    """Warn why a pass ended at once: incomplete batches are dropped on request."""
    if current_worker() is None:  # one of several workers may have nothing to do
        warn_once(
            f"a pass over {n_obs} rows had no batch: {type(sampler).__name__} makes batches of {sampler.batch_size} "
            "rows and drops incomplete ones; use a smaller batch_size, or drop_last=False"
        )


def sharded_batches(sharding: Any, sampler: Sampler, *, to: Any) -> ShardRows | None:
    """Return the layout of batches in global arrays, None without a sharding.

    Raises:
        ConfigError: ranks may have different batch sizes or numbers of batches, or the sharding does not fit them.
    """
    if sharding is None:
        return None
    if to != "jax":
        raise ConfigError("sharding= is for JAX arrays: also pass to='jax'")
    if not isinstance(sampler, DistributedSampler) or not sampler.has_equal_batches:
        raise ConfigError(
            "sharding= needs batches of equal size and number on every rank: batch_sampler=DistributedSampler("
            "RandomSampler(...), dist_info='jax'), with any sampler inside and equal batches; or "
            "order=Order(collection, batch_size=...) instead of a sampler, where weights mark padding"
        )
    assert sampler.batch_size is not None
    rank, world_size = sampler.rank, sampler.world_size
    return shard_full_batches(sharding, batch_size=sampler.batch_size, rank=rank, world_size=world_size)


def global_batch(rows: Any, sharded: ShardRows) -> Any:
    """Return the global array of which these rows are this rank's part; no communication."""
    if rows.shape[0] != sharded.num_rows:
        raise ConfigError(
            f"a batch has {rows.shape[0]} rows, but every part of a global array needs {sharded.num_rows}: pass "
            "drop_last=True to the sampler, or a num_samples that is a multiple of batch_size"
        )
    if not isinstance(rows, np.ndarray):
        warn_once("X is sparse, but global JAX arrays are dense: its rows are read as dense ones")
    dense: NDArray = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return sharded.global_array(narrowed("X", dense))


Library: TypeAlias = Literal["torch", "jax"]


def check_library(to: Any) -> None:
    """Refuse an unknown or missing library; imports nothing.

    Raises:
        ConfigError: it is unknown.
        MissingExtraError: it is not installed.
    """
    if to is None:
        return
    if to not in get_args(Library):
        raise ConfigError(f"to must be None, 'torch' or 'jax', got {to!r}")
    if find_spec(to) is None:
        extra = "train" if to == "torch" else to
        raise MissingExtraError(f"to={to!r} needs {to}: pip install 'rankwise[{extra}]'")


def convert(rows: Any, to: Library | None, *, gpu: bool = False) -> Any:
    """Return rows, an array or csr_matrix, as tensors or arrays of a library; torch tensors share the memory."""
    if to is None:
        return rows
    if to == "torch":
        if isinstance(rows, np.ndarray):
            tensor: Any = tensor_over("X", rows)
        else:
            parts = tuple(tensor_over("X", part) for part in (rows.data, rows.indices, rows.indptr))
            tensor = torch_csr(parts, rows.shape[1])  # rows and columns were checked when they were read
        return tensor.to("cuda", non_blocking=True) if gpu else tensor
    import jax.numpy as jnp
    from jax.experimental.sparse import CSR

    if isinstance(rows, np.ndarray):
        return jnp.asarray(narrowed("X", rows))
    arrays = (jnp.asarray(narrowed("X", rows.data)), jnp.asarray(rows.indices), jnp.asarray(rows.indptr))
    return CSR(arrays, shape=rows.shape)  # type: ignore[no-untyped-call]


def check_gpu(to: Any, *, wanted: bool) -> None:
    """Refuse `preload_to_gpu` if it cannot work."""
    if not wanted:
        return
    mend = "omit preload_to_gpu: rows are shuffled while they are decoded, not on a GPU"
    if to != "torch":
        raise ConfigError(f"preload_to_gpu=True needs to='torch', got to={to!r}; {mend}")
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"preload_to_gpu=True needs a CUDA device, but torch finds none; {mend}")
