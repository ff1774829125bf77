"""Batches as JAX arrays: local to this process, or parts of global arrays sharded over all devices."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray, Order, Share
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.pool import allocate_bytes
from rankwise.data.feed.place import DENSE, Placed, Placer
from rankwise.errors import ConfigError, MissingExtraError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """The rows of this process in global arrays.

    Attributes:
        sharding: of the first axis, and of as many further axes as a field has.
        num_rows: rows of this process, padding included; the same on every rank.
        world_size: number of processes.
    """

    sharding: Any
    num_rows: int
    world_size: int

    def global_array(self, local: NDArray) -> Any:
        """Return the global array of which `local`, [num_rows, ...], is this process's part; no communication."""
        import jax

        shape = (self.num_rows * self.world_size, *local.shape[1:])
        make: Any = jax.make_array_from_process_local_data
        return make(_for_axes(self.sharding, local.ndim), local, shape)


def shard_full_batches(sharding: Any, *, batch_size: int, rank: int, world_size: int) -> ShardRows:
    """Return the layout in arrays with a sharding, for batches that are full on every rank.

    Args:
        sharding: ``jax.sharding.Sharding``.
        batch_size: rows of each rank.
        rank: this rank, as known to the caller that draws the batches.
        world_size: number of ranks, as known to that caller.

    Raises:
        ConfigError: the sharding does not give each process an equal part of the first axis, or `batch_size` does not
            divide into equal parts.
    """
    import jax

    local = _local_parts(sharding, world_size)
    if rank != jax.process_index():
        raise ConfigError(
            f"rows are drawn for rank {rank}, but this is JAX's process {jax.process_index()}: pass dist_info='jax'"
        )
    if batch_size % local:
        raise ConfigError(
            f"sharding= cuts the {batch_size} rows of this process into {local} unequal parts: use a "
            f"batch_size that is a multiple of {local}"
        )
    return ShardRows(sharding=sharding, num_rows=batch_size, world_size=world_size)


def _local_parts(sharding: Any, world_size: int) -> int:
    """Return into how many equal parts the sharding cuts the rows of this process."""
    import jax

    if jax.process_count() != world_size:
        raise ConfigError(
            f"sharding= spans JAX's {jax.process_count()} processes, the loader feeds {world_size} ranks: start JAX "
            "with rankwise.World.init_jax(), so that both are equal"
        )
    total, local = _parts(sharding)
    if total != local * world_size:
        raise ConfigError(
            f"sharding= cuts the first axis into {total} parts, {local} of them on this process; but {world_size} "
            f"processes with {local} parts each need {local * world_size}: each rank loads its own rows, so "
            "shard the first axis over all devices, as NamedSharding(Mesh(jax.devices(), ('data',)), "
            "PartitionSpec('data')) does"
        )
    return local


def _parts(sharding: Any) -> tuple[int, int]:
    """Return into how many parts the first axis is cut, and how many of them lie on this process."""
    import jax

    length = len(sharding.device_set)  # a multiple of the number of parts
    where = _for_axes(sharding, 1).devices_indices_map((length,))
    parts = {device: index[0].indices(length)[:2] for device, index in where.items()}
    mine = {part for device, part in parts.items() if device.process_index == jax.process_index()}
    return len(set(parts.values())), len(mine)


def _for_axes(sharding: Any, num_axes: int) -> Any:
    """Return the sharding for arrays with `num_axes` axes: labels have fewer axes than images."""
    import jax

    if not isinstance(sharding, jax.sharding.NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    spec: Any = jax.sharding.PartitionSpec
    return jax.sharding.NamedSharding(sharding.mesh, spec(*sharding.spec[:num_axes]))


_LOG = logging.getLogger("rankwise.feed")
_said: set[str] = set()
_MOST_STEPS = 4  # number of sparse batch sizes between two powers of two


def is_jax_target(device: Any) -> bool:
    """Whether batches should be JAX arrays: ``"jax"``, or a ``jax.sharding.Sharding``. Imports nothing."""
    if isinstance(device, str):
        return device == "jax"
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(device, jax.sharding.Sharding)


def make_jax_placer(
    target: Any,
    *,
    order: Order,
    world_size: int,
    micro_batch: int | None,
    fields: Mapping[str, FieldSpec],
) -> JaxPlacer:
    """Return the placer of a loader.

    Args:
        target: see `is_jax_target`.
        order: of the loader; its batch size limits the size of batches.
        world_size: ranks of the loader.
        micro_batch: most samples of a rank in one batch, or None.
        fields: the fields of the source.

    Raises:
        MissingExtraError: JAX is not installed.
        ConfigError: the sharding does not give each rank an equal part of a batch, or a field is sparse and cannot be
            sharded.
    """
    if find_spec("jax") is None:
        raise MissingExtraError("batches of JAX arrays need jax: pip install 'rankwise[jax]'")
    if isinstance(target, str):
        return JaxPlacer(None)
    ragged = [name for name, spec in fields.items() if spec.ragged]
    if ragged:
        raise ConfigError(
            f"{', '.join(map(repr, ragged))} is sparse, but global JAX arrays are dense: use dense rows "
            "(RowSource(..., dense=True) or genes=[...]), leave it out with fields=, or remove sharding= and get "
            "each rank's rows as a BCSR matrix"
        )
    local = _local_parts(target, world_size)
    most = math.ceil(order.batch_size / world_size)
    most = most if micro_batch is None else min(most, micro_batch)
    num_rows = math.ceil(most / local) * local
    return JaxPlacer(ShardRows(sharding=target, num_rows=num_rows, world_size=world_size))


class JaxPlacer(Placer):
    """Copies fields into fresh memory, which JAX takes over; nothing else writes there, so no wait is needed.

    Args:
        rows: the layout of global arrays; None = arrays local to this process, as long as its share.
    """

    def __init__(self, rows: ShardRows | None) -> None:
        self._rows = rows

    def place(self, buffer: HostBuffer, names: Iterable[str], num_cols: Mapping[str, int] = DENSE) -> Placed:
        """Return the fields of a buffer as JAX arrays, a sparse one as a BCSR matrix."""
        fields = {}
        for name in names:
            arrays = tuple(narrowed(name, array) for array in buffer.arrays(name))
            fields[name] = self._array(arrays[0]) if len(arrays) == 1 else _bcsr(arrays, num_cols[name])
        return Placed(fields)

    def keys(self, keys: IntArray) -> Any:
        """Return sample keys as uint32[B, 2]: key data for ``jax.random.wrap_key_data``."""
        words = keys.astype(np.int64).view(np.uint64)
        return self._array(np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32))

    def weights(self, share: Share) -> Any:
        """Return float32 [rows], 1 for a sample and 0 for padding, sharded like the fields; None without sharding."""
        if self._rows is None:
            return None
        weights = np.ones(share.num_samples) if share.weights is None else share.weights
        return self._array(weights.astype(np.float32))

    def _array(self, array: NDArray) -> Any:
        import jax

        if self._rows is None:
            return jax.device_put(_owned(array, len(array)))
        return self._rows.global_array(_owned(array, self._rows.num_rows))


def narrowed(name: str, array: NDArray) -> NDArray:
    """Return an array with the dtype that JAX will use. By default JAX cuts 64 bits silently; this warns or raises.

    Args:
        name: of the field, for messages.
        array: its values.

    Raises:
        ConfigError: JAX cannot hold the dtype, or integers would change their value.
    """
    import jax

    if array.dtype.kind not in "biufcV" or array.dtype.names is not None:
        raise ConfigError(
            f"field {name!r} has dtype {array.dtype}, which JAX cannot hold: leave it out with fields=, or convert it "
            "to numbers with transform="
        )
    half = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if half == array.dtype:
        return array
    if array.dtype.kind in "iu":
        _check_range(name, array, half)
    elif name not in _said:
        _said.add(name)
        _LOG.warning(
            "field %r is %s and becomes %s under JAX's settings: jax.config.update('jax_enable_x64', True) keeps it",
            name, array.dtype, half,
        )  # fmt: skip
    return array.astype(half)


def _check_range(name: str, array: NDArray, half: np.dtype[Any]) -> None:
    ends = np.iinfo(half)
    if len(array) and array.size and not (array.min() >= ends.min and array.max() <= ends.max):
        raise ConfigError(
            f"field {name!r} holds {array.dtype} beyond the range of {half} (from {array.min()} to {array.max()}), and "
            "JAX is set to 32 bits: use jax.config.update('jax_enable_x64', True), or leave the field out with fields="
        )


def _owned(array: NDArray, num_rows: int) -> NDArray:
    """Return an aligned copy, which XLA uses without copying again, padded with zeros to `num_rows`."""
    row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
    copy = allocate_bytes(num_rows * row_bytes, pinned=False).view(array.dtype).reshape(num_rows, *array.shape[1:])
    copy[: len(array)] = array
    copy[len(array) :] = 0
    return copy


def _bcsr(parts: tuple[NDArray, ...], num_cols: int) -> Any:
    """Return a BCSR matrix. The number of stored elements is rounded up, so that JAX compiles for few sizes."""
    import jax
    from jax.experimental.sparse import BCSR

    data, indices, indptr = parts
    size = _rounded(len(data))
    arrays = (jax.device_put(_owned(data, size)), jax.device_put(_owned(indices, size)))
    shape = (len(indptr) - 1, num_cols)
    return BCSR((*arrays, jax.device_put(_owned(indptr, len(indptr)))), shape=shape)


def _rounded(count: int) -> int:
    """Round up to one of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: at most a quarter more."""
    step = max(1, (1 << max(0, count - 1).bit_length()) // (2 * _MOST_STEPS))
    return -(-max(1, count) // step) * step
