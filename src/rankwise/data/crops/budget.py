"""Memory budget of a pipeline, computed and checked before the first sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankwise.data.contract import whole_number
from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import DevicePlace
from rankwise.data.crops.exceptions import BudgetExceeded, InvalidArgument
from rankwise.data.crops.fields import field_specs, sample_bytes

_LEAST_SLOTS = 2  # one is filled while the other is in use
_WIDEST = np.dtype(np.float64)  # of all real elements; the arrays' dtypes are not known yet
_CGROUP = Path("/sys/fs/cgroup/memory.max")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Memory limits for all ranks of a machine together; a rank has its part of them.

    Attributes:
        place: device of the rank, and the numbers of ranks that share it and the host.
        max_gpu_memory_bytes: limit for batches on a device (with the CPU as device: in host memory of each
            rank); None = no limit.
        max_host_memory_bytes: limit on the host; None = its memory.
        host_memory_bytes: memory of the host.

    Raises:
        InvalidArgument: a limit is not an integer of at least 1.
    """

    place: DevicePlace
    max_gpu_memory_bytes: int | None = None
    max_host_memory_bytes: int | None = None
    host_memory_bytes: int = field(default_factory=host_memory_bytes)

    def __post_init__(self) -> None:
        for name in ("max_gpu_memory_bytes", "max_host_memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                whole_number(name, value, least=1, mend="; None for no cap", error=InvalidArgument)

    @property
    def device_bytes(self) -> int | None:
        """This rank's part of the device memory; None = no limit."""
        cap = self.max_gpu_memory_bytes
        return None if cap is None else cap // self.place.sharers

    @property
    def host_bytes(self) -> int:
        """This rank's part of the host memory."""
        cap = min(self.max_host_memory_bytes or self.host_memory_bytes, self.host_memory_bytes)
        return cap // self.place.local_world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The memory that a pipeline needs.

    Attributes:
        batch_bytes: one batch, all fields and masks.
        num_slots: batches in memory at the same time: being read, ready, and held by the consumer.
        scratch_bytes: a batch before `transform=`, 0 without one.
        cache_bytes: decoded chunks.
        caps: the limits.
    """

    batch_bytes: int
    num_slots: int
    scratch_bytes: int
    cache_bytes: int
    caps: Caps

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
        device = self.caps.device_bytes
        left = (self.caps.host_bytes - self.scratch_bytes - self.cache_bytes) // self.num_slots
        return left if device is None else min(left, device // self.num_slots)

    def __str__(self) -> str:
        device, place = self.caps.device_bytes, self.caps.place.device
        ring = f"{_size(self.batch_bytes)} x {self.num_slots} = {_size(self.ring_bytes)}"
        kind = "host" if place is None or place.type == "cpu" else "pinned host"
        lines = (
            ("batches on the device", f"{ring} of {'no cap' if device is None else _size(device)}"),
            (f"batch buffers ({kind})", ring),
            ("scratch of transform=", _size(self.scratch_bytes)),
            ("decoded chunks (cache)", _size(self.cache_bytes)),
            ("sum on the host", f"{_size(self.host_bytes)} of {_size(self.caps.host_bytes)}"),
        )
        return "\n".join(f"  {what:<28}{amount}" for what, amount in lines)

    def check_fits(self, *, what: str, remedies: Sequence[str], slots: int) -> None:
        """Raise an error if it exceeds the limits.

        Raises:
            BudgetExceeded: it does not fit; the message lists the parts and the needed total.
        """
        caps, sharers, local_ranks = self.caps, self.caps.place.sharers, self.caps.place.local_world_size
        device_needed = slots * self.batch_bytes
        host_needed = device_needed + self.scratch_bytes + self.cache_bytes
        larger = []
        if caps.device_bytes is not None and caps.device_bytes < device_needed:
            larger.append(f"max_gpu_memory_bytes={device_needed * sharers} or more")
        if caps.host_bytes < host_needed and caps.max_host_memory_bytes is not None:
            larger.append(f"max_host_memory_bytes={host_needed * local_ranks} or more")
        if larger or caps.host_bytes < host_needed:
            most = max(local_ranks, sharers)
            shared = f" ({local_ranks} ranks share the host, {sharers} the device)" if most > 1 else ""
            raise BudgetExceeded(f"{what}{shared}:\n{self}\nUse {', or '.join([*larger, *remedies])}")


def stream_budget(config: Config, caps: Caps) -> Budget:
    """Return the memory for a stream: with as many batch buffers as requested, or as the limits allow.

    Raises:
        BudgetExceeded: not even two batches fit; the message lists the parts and the needed total.
    """
    fields = {name: field.crop_field(_WIDEST) for name, field in config.all_fields.items()}
    batch = sample_bytes(field_specs(fields)) * config.samples_per_batch
    scratch = batch if config.transform is not None else 0
    fits = (caps.host_bytes - scratch - config.cache_bytes) // batch
    if caps.device_bytes is not None:
        fits = min(fits, caps.device_bytes // batch)
    budget = Budget(
        batch_bytes=batch,
        num_slots=max(_LEAST_SLOTS, min(config.host_buffer_waves, fits)),
        scratch_bytes=scratch,
        cache_bytes=config.cache_bytes,
        caps=caps,
    )
    remedies = ["fewer samples_per_batch", *(["a smaller cache_bytes"] if config.cache_bytes else [])]
    budget.check_fits(what="at least two batches must fit, but do not", remedies=remedies, slots=_LEAST_SLOTS)
    return budget


def _size(num_bytes: int) -> str:
    if num_bytes < 2**20:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 2**20:.1f} MiB"
