"""`Batch`: some samples of a stream on their device, in memory that is theirs until nobody looks at it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.crops.dlpack import dlpack_capsule, dlpack_device
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.reading.field import MASK_SUFFIX
from rankwise.data.crops.sample import Sample

__all__ = ["Batch", "BatchInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo:
    """Where the crops of a batch lie.

    Attributes:
        device_ptr: address of the first voxel, on the device.
        shape: ``(samples, *sample_shape)``.
        dtype: name of the dtype.
        ready_stream: handle of the CUDA stream on which the crops are ready; 0 on a CPU.
        batch_id: number of the batch, from 0.
    """

    device_ptr: int
    shape: tuple[int, ...]
    dtype: str
    ready_stream: int
    batch_id: int


class Batch:
    """Crops of some samples. Made by `Pipeline`; row i is the i-th sample of `samples`.

    ``batch["image"]`` is a field on the device, batch axis first; ``torch.from_dlpack(batch)``, ``np.from_dlpack`` and
    JAX's share the memory of the crops. The memory is used again once the batch is released or forgotten *and* nothing
    that shares it is left. So a view outlives its batch, and any number of batches can be held, as far as the memory
    caps of the pipeline allow.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        main: str,
        samples: tuple[Sample, ...],
        numbers: IntArray,
        key: IntArray,
        batch_id: int,
        ready_stream: int,
        give_back: Callable[[Any], None],
    ) -> None:
        self._fields: dict[str, Any] | None = dict(fields)
        self._main = main
        self._give_back: Callable[[Any], None] | None = give_back
        self._ready_stream = ready_stream
        self.batch_id = batch_id
        self.samples = samples
        self.numbers = numbers
        self.key = key

    def __repr__(self) -> str:
        what = "released" if self._fields is None else ", ".join(self._fields)
        return f"Batch({self.batch_id}, samples={len(self)}: {what})"

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.samples)

    @property
    def labels(self) -> NDArray:
        """The samples' labels, stacked: [B] or [B, ...].

        Raises:
            InvalidArgument: some samples have none, or their shapes differ.
        """
        missing = [int(n) for n, sample in zip(self.numbers, self.samples, strict=True) if sample.label is None]
        if missing:
            raise InvalidArgument(f"the samples {missing} have no label: give Sample(..., label=...) to all of them")
        try:
            return np.array([sample.label for sample in self.samples])
        except ValueError as error:
            raise InvalidArgument(f"the labels of a batch want one shape: {error}") from error

    @property
    def meta(self) -> tuple[Any, ...]:
        """What was given as `Sample.meta`, one for each sample."""
        return tuple(sample.meta for sample in self.samples)

    @property
    def info(self) -> BatchInfo:
        """Where the crops lie.

        Raises:
            InvalidArgument: the batch was released.
        """
        crops = self._crops()
        pointer = crops.ctypes.data if isinstance(crops, np.ndarray) else crops.data_ptr()
        return BatchInfo(
            device_ptr=int(pointer),
            shape=tuple(crops.shape),
            dtype=str(crops.dtype).removeprefix("torch."),
            ready_stream=self._ready_stream,
            batch_id=self.batch_id,
        )

    @property
    def mask(self) -> Any:
        """bool[B, *sample_shape]: which voxels of the crops lie inside their array.

        Raises:
            InvalidArgument: the configuration has neither ``pad=`` nor ``mask=True``, or the batch was released.
        """
        fields = self._alive()
        if self._main + MASK_SUFFIX not in fields:
            raise InvalidArgument("there is no mask: crops get one with pad= or mask=True in the configuration")
        return fields[self._main + MASK_SUFFIX]

    def __getitem__(self, field: str) -> Any:
        """Return a field, batch axis first: a tensor on the device, or a NumPy array.

        Raises:
            InvalidArgument: the batch was released.
            KeyError: there is no such field.
        """
        fields = self._alive()
        if field not in fields:
            raise KeyError(f"the batch has no field {field!r}; it has {', '.join(map(repr, fields))}")
        return fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._alive())

    def __contains__(self, field: object) -> bool:
        return field in self._alive()

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(self._alive())

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the crops as a DLPack capsule: of the first version of the protocol unless `max_version` allows 1.0.

        Args:
            stream: stream of the consumer that shall wait for the crops; see the protocol.
            max_version: newest version that the consumer understands.
            dl_device: device that the consumer wants it on.
            copy: True = make a copy, False = never, None = if it must be.

        Raises:
            InvalidArgument: the batch was released.
            BufferError: the crops cannot be handed over as wished.
        """
        return dlpack_capsule(self._crops(), stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and number of the device of the crops.

        Raises:
            InvalidArgument: the batch was released.
        """
        return dlpack_device(self._crops())

    def release(self, event: Any = None) -> None:
        """Let go of the memory: it is used again when nothing shares it any more. Calling it twice is fine.

        Args:
            event: work on the device that must be through before: a CUDA event or stream of torch or CuPy, the handle
                of a stream, or a JAX array that is being computed. None = work on the current stream.

        Raises:
            InvalidArgument: `event` is none of these.
        """
        give_back, self._give_back = self._give_back, None
        try:
            if give_back is not None:
                give_back(event)  # before the fields go, and with them perhaps the last views
        finally:
            self._fields = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _alive(self) -> dict[str, Any]:
        if self._fields is None:
            raise InvalidArgument(
                f"batch {self.batch_id} was released, its memory may hold other samples by now: take what you need "
                "before; views and tensors that were taken from it stay valid"
            )
        return self._fields

    def _crops(self) -> Any:
        fields = self._alive()
        if self._main not in fields:
            raise InvalidArgument(
                f"transform= left the field {self._main!r} out, which stands for the batch: take another field by name"
            )
        return fields[self._main]
