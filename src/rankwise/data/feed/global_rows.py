"""How the samples of a step lie in global arrays of JAX: each process fills the part that lies on its devices.

Shares of ranks differ by one sample and the last step of an epoch is smaller, but the parts of a sharded array are
equal, and a new shape is compiled anew. So every rank's part has one length throughout, what a share lacks is zeros,
and weights tell which rows are real.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rankwise.data.contract import NDArray, Order
from rankwise.errors import ConfigError

__all__ = ["ShardRows", "shard_full_batches", "shard_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """The rows of this process in global arrays.

    Attributes:
        sharding: of the first axis at least; of further ones as far as a field has them.
        num_rows: of this process, padding included; the same on every rank.
        world_size: number of processes.
    """

    sharding: Any
    num_rows: int
    world_size: int

    def global_array(self, local: NDArray) -> Any:
        """Return the global array of which `local`, [num_rows, ...], is this process's part; no rank waits."""
        import jax

        shape = (self.num_rows * self.world_size, *local.shape[1:])
        make: Any = jax.make_array_from_process_local_data
        return make(_for_axes(self.sharding, local.ndim), local, shape)


def shard_rows(sharding: Any, order: Order, *, world_size: int, micro_batch: int | None) -> ShardRows:
    """Return how batches of an order lie in arrays of a sharding.

    Raises:
        ConfigError: the sharding does not cut the first axis so that each process holds an equal part of its own.
    """
    local = _local_parts(sharding, world_size)
    batch_size = getattr(order, "batch_size", None)
    if batch_size is None:
        raise ConfigError(f"sharding= wants an order with a batch_size, {type(order).__name__} has none")
    most = math.ceil(batch_size / world_size)
    most = most if micro_batch is None else min(most, micro_batch)
    return ShardRows(sharding=sharding, num_rows=math.ceil(most / local) * local, world_size=world_size)


def shard_full_batches(sharding: Any, *, batch_size: int, rank: int, world_size: int) -> ShardRows:
    """Return how batches that are full on every rank lie in arrays of a sharding.

    Args:
        sharding: ``jax.sharding.Sharding``.
        batch_size: rows of each rank.
        rank: this rank, as who draws the batches has it.
        world_size: number of ranks, likewise.

    Raises:
        ConfigError: the sharding does not cut the first axis so that each process holds an equal part of its own, or
            the parts are not equal.
    """
    import jax

    local = _local_parts(sharding, world_size)
    if rank != jax.process_index():
        raise ConfigError(
            f"rows are drawn for rank {rank}, and this is JAX's process {jax.process_index()}: pass dist_info='jax'"
        )
    if batch_size % local:
        raise ConfigError(
            f"sharding= cuts the {batch_size} rows of this process into {local} parts, which are not equal: take a "
            f"batch_size that is a multiple of {local}"
        )
    return ShardRows(sharding=sharding, num_rows=batch_size, world_size=world_size)


def _local_parts(sharding: Any, world_size: int) -> int:
    """Into how many equal parts the rows of this process are cut."""
    import jax

    if jax.process_count() != world_size:
        raise ConfigError(
            f"sharding= spans JAX's {jax.process_count()} processes, the loader feeds {world_size} ranks: start JAX "
            "with rankwise.World.init_jax(), so that both are the same"
        )
    total, local = _parts(sharding)
    if total != local * world_size:
        raise ConfigError(
            f"sharding= cuts the first axis into {total} parts, {local} of them on this process; {world_size} "
            f"processes with {local} parts each would be {local * world_size}: each rank loads rows of its own, so "
            "shard the first axis over all devices, as NamedSharding(Mesh(jax.devices(), ('data',)), "
            "PartitionSpec('data')) does"
        )
    return local


def _parts(sharding: Any) -> tuple[int, int]:
    """Return into how many parts the first axis is cut, and how many lie on this process."""
    import jax

    length = len(sharding.device_set)  # a multiple of the number of parts
    where = _for_axes(sharding, 1).devices_indices_map((length,))
    parts = {device: index[0].indices(length)[:2] for device, index in where.items()}
    mine = {part for device, part in parts.items() if device.process_index == jax.process_index()}
    return len(set(parts.values())), len(mine)


def _for_axes(sharding: Any, num_axes: int) -> Any:
    """Return the sharding for arrays of so many axes: labels have fewer than images have."""
    import jax

    if not isinstance(sharding, jax.sharding.NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    spec: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(sharding.mesh, spec(*sharding.spec[:num_axes]))
