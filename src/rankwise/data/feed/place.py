"""From a host buffer to the fields of a batch: NumPy arrays, tensors over the same memory, or copies on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray, Share
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.csr import csr_parts, quiet_csr, scipy_csr, torch_csr
from rankwise.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import torch

DENSE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Placed:
    """Fields of a batch by name, and what must happen before they are used (None = nothing)."""

    fields: dict[str, Any]
    ready: Any = None


class Placer(ABC):
    """Puts batches on the device of the training step.

    Attributes:
        pinned: whether host buffers should be page-locked.
        shares_memory: whether the result of `place` lies in the buffer itself, which must then wait for the consumer.
    """

    pinned = False
    shares_memory = False

    @abstractmethod
    def place(self, buffer: HostBuffer, names: Iterable[str], num_cols: Mapping[str, int] = DENSE) -> Placed:
        """Return the fields of a buffer; the reader thread calls it. It may start a copy, which the lease awaits.

        Args:
            buffer: holds the fields.
            names: the fields to return.
            num_cols: columns of the ragged fields, which become CSR matrices.
        """

    def receive(self, placed: Placed) -> dict[str, Any]:
        """Return the fields, usable on the consumer's thread and stream; the consumer calls it."""
        return placed.fields

    @abstractmethod
    def keys(self, keys: IntArray) -> Any:
        """Return sample keys, int64[B], on the device of the fields."""

    def weights(self, share: Share) -> Any:  # noqa: ARG002  (of placers that pad)
        """Return the weights of the rows if fields are padded; None if they are as long as the share."""
        return None


def make_placer(device: str | torch.device | None) -> Placer:
    """Return the placer for a device; None = NumPy arrays.

    Raises:
        MissingExtraError: a device was asked for and torch is not installed.
        ConfigError: torch does not know the device.
    """
    if device is None:
        return _HostPlacer(_array, scipy_csr, shares_memory=True)
    with needs_extra(
        f"batches on device {device} are torch tensors: pip install 'rankwise[train]', or device=None for NumPy"
    ):
        import torch
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r} is not a device of torch: {error}") from error
    quiet_csr()
    if where.type == "cuda":
        return _CudaPlacer(where)
    if where.type == "cpu":
        return _HostPlacer(tensor_over, torch_csr, shares_memory=True)
    # streams of other devices (MPS, XPU, ...) are not used: a blocking copy on the reader thread
    return _HostPlacer(lambda name, array: tensor_over(name, array).to(where), torch_csr, shares_memory=False)


def _array(_: str, array: NDArray) -> NDArray:
    return array


def tensor_over(name: str, array: NDArray) -> torch.Tensor:
    """Return a tensor over the memory of `array`."""
    import torch

    if array.dtype.name == "bfloat16":  # NumPy has this dtype only through ml_dtypes
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ConfigError(
            f"field {name!r} has dtype {array.dtype}, which torch cannot hold: omit it with fields=, convert it to "
            "numbers with transform=, or use NumPy arrays with device=None"
        ) from error


class _HostPlacer(Placer):
    """Arrays or tensors made on the reader thread, ready when they are made.

    Args:
        convert: makes an array or tensor of each array; its other argument is the name of the field.
        sparse: makes a ragged field of its three.
        shares_memory: see `Placer`.
    """

    def __init__(
        self,
        convert: Callable[[str, NDArray], Any],
        sparse: Callable[[tuple[Any, ...], int], Any],
        *,
        shares_memory: bool,
    ) -> None:
        self._convert, self._sparse, self.shares_memory = convert, sparse, shares_memory

    def place(self, buffer: HostBuffer, names: Iterable[str], num_cols: Mapping[str, int] = DENSE) -> Placed:
        fields = {}
        for name in names:
            arrays = [self._convert(name, array) for array in buffer.arrays(name)]
            fields[name] = arrays[0] if len(arrays) == 1 else self._sparse(tuple(arrays), num_cols[name])
        return Placed(fields)

    def keys(self, keys: IntArray) -> Any:
        return self._convert("key", keys)


class _CudaPlacer(Placer):
    """Copies from page-locked memory on a separate stream; the consumer's stream waits for the copy, not the host."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                f"device={str(device)!r} was requested, but torch finds no CUDA device: check CUDA_VISIBLE_DEVICES and "
                "that this torch is built for CUDA"
            )

        def sent(name: str, array: NDArray) -> torch.Tensor:
            return tensor_over(name, array).to(device, non_blocking=True)

        self._device, self._copies = device, _HostPlacer(sent, torch_csr, shares_memory=False)
        self._stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]

    def place(self, buffer: HostBuffer, names: Iterable[str], num_cols: Mapping[str, int] = DENSE) -> Placed:
        import torch

        with torch.cuda.stream(self._stream):
            fields = self._copies.place(buffer, names, num_cols).fields
            # the buffer may be refilled once the copy is done, whatever the consumer does
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        buffer.lease.wait_for(copied)
        return Placed(fields, copied)

    def receive(self, placed: Placed) -> dict[str, Any]:
        import torch

        current = torch.cuda.current_stream(self._device)
        current.wait_event(placed.ready)
        for field in placed.fields.values():
            for tensor in csr_parts(field) or (field,):
                tensor.record_stream(current)  # its memory was allocated for the copy stream
        return placed.fields

    def keys(self, keys: IntArray) -> Any:
        return tensor_over("key", keys).to(self._device)
