"""Fingerprints of tensors and rows of a batch, from their bits; and which tensors are replicas."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankwise.guard.check import local, plain_name, replicas_in

if TYPE_CHECKING:
    import torch
    from torch import nn

_PART = 1 << 22  # elements summed at once, because the sum converts them to 64 bits
_MOST_COLUMNS = 4096


def replicated(model: nn.Module, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that should be equal on every rank, by plain name.

    Shards and tensors that a wrapper ignores are left out. A replicated DTensor is included, by its local tensor.
    """
    apart = tensors_apart(model)
    for name, tensor in named:
        placements = getattr(tensor, "placements", ())
        if id(tensor) not in apart and all(placement.is_replicate() for placement in placements):
            yield plain_name(name), tensor


def tensors_apart(model: nn.Module) -> set[int]:
    """Return the ids of tensors in FSDP1 modules, which are views of shards, and of those that a wrapper ignores."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    sharded = [] if fsdp is None else [m for m in model.modules() if isinstance(m, fsdp.FullyShardedDataParallel)]
    apart = {id(p) for module in sharded for p in module.parameters()}
    wrapper = replicas_in(model)
    if wrapper is not None and wrapper.parameters_to_ignore:
        every: list[tuple[str, Any]] = [*wrapper.module.named_parameters(), *wrapper.module.named_buffers()]
        apart |= {id(tensor) for name, tensor in every if name in wrapper.parameters_to_ignore}
    return apart


def _bits(flat: torch.Tensor) -> torch.Tensor:
    import torch

    sizes = {1: torch.uint8, 2: torch.int16}
    return flat.view(sizes.get(flat.element_size(), torch.int32))


def fingerprints(tensors: Sequence[Any]) -> list[int | None]:
    """Return a fingerprint of each tensor's bits: the 64-bit sum of its 32-bit words; None for None.

    It synchronises with the device once. Tensors with the same words in another order have equal fingerprints.
    """
    import torch

    found: list[int | None] = [None] * len(tensors)
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None and not tensor.is_meta:
            bits = _bits(local(tensor).contiguous().reshape(-1))
            parts = [part.sum(dtype=torch.int64) for part in torch.split(bits, _PART)]
            total = torch.stack(parts).sum() if len(parts) > 1 else parts[0]
            by_device.setdefault(total.device, []).append((place, total))
    for sums in by_device.values():
        for (place, _), number in zip(sums, torch.stack([total for _, total in sums]).tolist(), strict=True):
            found[place] = number
    return found


def row_hashes(tensors: Sequence[torch.Tensor], most_rows: int) -> list[int]:
    """Return a hash for each of the first rows (samples) of a batch, from all tensors that share its first axis."""
    import torch

    dense = [local(t) for t in tensors if t.ndim and not t.is_meta and t.layout == torch.strided]
    if not dense:
        return []
    size = dense[0].shape[0]
    total = torch.zeros(min(size, most_rows), dtype=torch.int64, device=dense[0].device)
    for tensor in dense:
        if tensor.shape[0] != size or not tensor.numel():
            continue
        rows = tensor[:most_rows].reshape(len(total), -1)[:, :_MOST_COLUMNS].contiguous()
        bits = _bits(rows.reshape(-1)).reshape(len(total), -1).to(torch.int64)
        # odd factors by position, so that the order of the values in a row matters
        places = torch.arange(1, 2 * bits.shape[1], 2, dtype=torch.int64, device=bits.device) * 0x9E3779B1
        total = total * 31 + (bits * places).sum(1).to(total.device)
    return [int(number) for number in total.tolist()]
