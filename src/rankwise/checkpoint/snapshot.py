"""Host memory into which the states of successive saves are copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HostBuffers:
    """Copies of tensors that a thread may write while the training continues; the memory is reused from save to save.

    Fresh memory costs more than the copy into it, because the system provides it page by page. Memory for GPU tensors
    is pinned, so that all copies run concurrently.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._taken: dict[str, torch.Tensor] = {}
        # with the tensor itself: memory that is free again becomes another tensor's, at the same place
        self._known: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._device: torch.device | None = None

    def take(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Begin to copy a tensor to the host and return the copy; tensors shared between places stay shared.

        Args:
            tensor: on any device, strided.
            place: its name in the state, by which the memory is found again.
        """
        import torch

        shape = tuple(tensor.shape)
        bits = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), shape, tensor.stride(), bits)
        if key in self._known:
            return self._known[key][1]
        buffer = self._kept.get(place)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        buffer.copy_(tensor, non_blocking=True)
        if tensor.device.type != "cpu":
            self._device = tensor.device
        self._taken[place], self._known[key] = buffer, (tensor, buffer)
        return buffer

    def synchronize(self) -> None:
        """Wait for the copies and start over; free the memory of places that were not used."""
        if self._device is not None:
            import torch

            torch.accelerator.synchronize(self._device)
        self._kept, self._taken, self._known, self._device = self._taken, {}, {}, None
