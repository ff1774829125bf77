"""Memory budget of a stream, computed and checked before the first sample."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import RankPlace
from rankwise.data.crops.exceptions import BudgetExceeded, InvalidArgument
from rankwise.data.crops.sample import Dtype, parse_dtype, resolved_dtype

__all__ = ["Budget", "Caps", "check_fits", "host_memory_bytes", "settle", "too_large"]

_LEAST_SLOTS = 2  # one is filled while the other is in use
_NATIVE_BYTES = 8  # the widest real element; the arrays' dtypes are not known yet
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The memory that a stream needs.

    Attributes:
        batch_bytes: one batch, all fields and masks.
        num_slots: batches in memory at the same time: being read, ready, and held by the consumer.
        scratch_bytes: a batch before `transform=`, 0 without one.
        cache_bytes: decoded chunks.
        device_cap_bytes: limit for batches on the device; None = no limit.
        host_cap_bytes: limit for everything on the host.
        on_host: whether the device is the host.
    """

    batch_bytes: int
    num_slots: int
    scratch_bytes: int
    cache_bytes: int
    device_cap_bytes: int | None
    host_cap_bytes: int
    on_host: bool

    @property
    def ring_bytes(self) -> int:
        """All batch buffers together."""
        return self.num_slots * self.batch_bytes

    @property
    def host_bytes(self) -> int:
        """Everything on the host."""
        return self.ring_bytes + self.scratch_bytes + self.cache_bytes

    @property
    def slot_limit_bytes(self) -> int:
        """Limit for one batch buffer, if batches turn out larger than expected."""
        left = (self.host_cap_bytes - self.scratch_bytes - self.cache_bytes) // self.num_slots
        return left if self.device_cap_bytes is None else min(left, self.device_cap_bytes // self.num_slots)

    def __str__(self) -> str:
        cap = "no cap" if self.device_cap_bytes is None else _size(self.device_cap_bytes)
        ring = f"{_size(self.batch_bytes)} x {self.num_slots} = {_size(self.ring_bytes)}"
        lines = (
            ("batches on the device", f"{ring} of {cap}"),
            (f"batch buffers ({'host' if self.on_host else 'pinned host'})", ring),
            ("scratch of transform=", _size(self.scratch_bytes)),
            ("decoded chunks (cache)", _size(self.cache_bytes)),
            ("sum on the host", f"{_size(self.host_bytes)} of {_size(self.host_cap_bytes)}"),
        )
        return "\n".join(f"  {what:<28}{amount}" for what, amount in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Memory limits for all ranks of a machine together, and the numbers of ranks that share them.

    Attributes:
        max_gpu_memory_bytes: limit for batches on a device (with the CPU as device: in host memory of each
            rank); None = no limit.
        max_host_memory_bytes: limit on the host; None = its memory.
        host_memory_bytes: memory of the host.
        sharers: ranks that share the device.
        local_ranks: ranks that share the host.
        on_host: whether batches stay in host memory.
    """

    max_gpu_memory_bytes: int | None
    max_host_memory_bytes: int | None
    host_memory_bytes: int
    sharers: int
    local_ranks: int
    on_host: bool

    @classmethod
    def of(cls, place: RankPlace, *, max_gpu_memory_bytes: int | None, max_host_memory_bytes: int | None) -> Self:
        """Return the limits for a rank.

        Raises:
            InvalidArgument: a limit is not an integer of at least 1.
        """
        given = {"max_gpu_memory_bytes": max_gpu_memory_bytes, "max_host_memory_bytes": max_host_memory_bytes}
        for name, value in given.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidArgument(f"{name} must be an integer of at least 1, or None for no cap; got {value!r}")
        return cls(
            **given,
            host_memory_bytes=host_memory_bytes(),
            sharers=place.sharers,
            local_ranks=place.local_ranks,
            on_host=place.device is None or place.device.type == "cpu",
        )

    @property
    def device_bytes(self) -> int | None:
        """This rank's part of the device memory; None = no limit."""
        cap = self.max_gpu_memory_bytes
        return cap if cap is None or self.on_host else cap // max(1, self.sharers)

    @property
    def host_bytes(self) -> int:
        """This rank's part of the host memory."""
        cap = min(self.max_host_memory_bytes or self.host_memory_bytes, self.host_memory_bytes)
        return cap // max(1, self.local_ranks)


def check_fits(budget: Budget, caps: Caps, *, what: str, mends: Sequence[str], slots: int) -> None:
    """Raise an error if a budget does not fit.

    Args:
        budget: the needed memory.
        caps: the limits.
        what: what must fit, for the message.
        mends: what would help besides larger limits.
        slots: smallest number of batch buffers.

    Raises:
        BudgetExceeded: it does not fit; the message lists the parts and the needed total.
    """
    device_needed = slots * budget.batch_bytes
    host_needed = device_needed + budget.scratch_bytes + budget.cache_bytes
    device_cap, host_cap = budget.device_cap_bytes, budget.host_cap_bytes
    if host_needed <= host_cap and (device_cap is None or device_needed <= device_cap):
        return
    sharers = 1 if caps.on_host else caps.sharers
    larger = []
    if device_cap is not None and device_cap < device_needed:
        larger.append(f"max_gpu_memory_bytes={device_needed * sharers} or more")
    if host_cap < host_needed and caps.max_host_memory_bytes is not None:
        larger.append(f"max_host_memory_bytes={host_needed * caps.local_ranks} or more")
    most = max(caps.local_ranks, sharers)
    shared = f" ({caps.local_ranks} ranks share the host, {sharers} the device)" if most > 1 else ""
    raise BudgetExceeded(f"{what}{shared}:\n{budget}\nUse {', or '.join([*larger, *mends])}")


def settle(config: Config, *, on_host: bool, sharers: int, local_ranks: int, host_bytes: int) -> Budget:
    """Return the memory of a configuration, with as many batch buffers as requested, or as the limits allow.

    Args:
        config: the configuration.
        on_host: whether batches stay in host memory.
        sharers: ranks that share the device.
        local_ranks: ranks that share the host.
        host_bytes: memory of the host.

    Raises:
        BudgetExceeded: not even two batches fit; the message lists the parts and the needed total.
    """
    batch = _batch_bytes(config)
    caps = Caps(
        max_gpu_memory_bytes=config.max_gpu_memory_bytes,
        max_host_memory_bytes=config.max_host_memory_bytes,
        host_memory_bytes=host_bytes,
        sharers=sharers,
        local_ranks=local_ranks,
        on_host=on_host,
    )
    device_cap, host_cap = caps.device_bytes, caps.host_bytes
    scratch = batch if config.transform is not None else 0
    fixed = scratch + config.cache_bytes
    fits = (host_cap - fixed) // batch
    if device_cap is not None:
        fits = min(fits, device_cap // batch)
    budget = Budget(
        batch_bytes=batch,
        num_slots=max(_LEAST_SLOTS, min(config.host_buffer_waves, fits)),
        scratch_bytes=scratch,
        cache_bytes=config.cache_bytes,
        device_cap_bytes=device_cap,
        host_cap_bytes=host_cap,
        on_host=on_host,
    )
    mends = ["fewer samples_per_batch", *(["a smaller cache_bytes"] if config.cache_bytes else [])]
    what = "at least two batches must fit, but do not"
    check_fits(budget, caps, what=what, mends=mends, slots=_LEAST_SLOTS)
    return budget


def too_large(num_bytes: int, limit_bytes: int) -> BudgetExceeded:
    """Return the error for a batch that turns out larger than its buffer may be."""
    return BudgetExceeded(
        f"a batch needs at least {num_bytes} bytes, but a batch buffer may use {limit_bytes}: raise "
        "max_gpu_memory_bytes (or max_host_memory_bytes), or lower samples_per_batch; transform= may have made "
        "them larger"
    )


def host_memory_bytes(limit: Path = _CGROUP) -> int:
    """Return the memory of this machine, or of its container.

    Args:
        limit: cgroup v2 file; "max" or a missing file is no limit.
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        total = 2**63
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):
        return total


def _batch_bytes(config: Config) -> int:
    total = 0
    for field in config.all_fields.values():
        dtype = parse_dtype(field.dtype)
        itemsize = _NATIVE_BYTES if dtype is Dtype.NATIVE else resolved_dtype(dtype).itemsize
        with_mask = field.mask if field.mask is not None else field.pad is not None
        total += math.prod(field.sample_shape) * (itemsize + bool(with_mask))
    return total * config.samples_per_batch


def _size(num_bytes: int) -> str:
    if num_bytes < 2**20:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 2**20:.1f} MiB"
