"""Memory on the host that the states of one save after the other are copied into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["HostBuffers"]


class HostBuffers:
    """Copies of tensors that a thread may write while the training goes on; the same memory is used from save to save.

    Fresh memory costs more than the copy into it: the system hands it out page by page. That of tensors on a GPU is
    pinned, so that all copies run at once.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._taken: dict[str, torch.Tensor] = {}
        # with the tensor itself: memory that is free again becomes another tensor's, at the same place
        self._known: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._device: torch.device | None = None

    def take(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        """Return a copy on the host, begun; a tensor that is shared between places stays shared.

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

    def settle(self) -> None:
        """Wait for the copies, and begin anew; memory of places that were not asked for is given back."""
        if self._device is not None:
            import torch

            torch.accelerator.synchronize(self._device)
        self._kept, self._taken, self._known, self._device = self._taken, {}, {}, None
