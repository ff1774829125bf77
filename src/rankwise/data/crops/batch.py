"""A batch of a stream: fields on a device, shared by DLPack, and released after an event."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.fields import MASK_SUFFIX
from rankwise.data.crops.sample import Sample
from rankwise.data.feed.batch import NamedFields
from rankwise.data.feed.memory.lease import Done, done_of
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInfo:
    """The location of the crops of a batch.

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


class Batch(NamedFields):
    """Crops of some samples. Made by `Pipeline`; row i is the i-th sample of `samples`.

    ``batch["image"]`` is a field on the device, batch axis first; ``torch.from_dlpack(batch)``, ``np.from_dlpack`` and
    JAX's share the memory of the crops. The memory is reused once the batch is released or garbage collected *and*
    no array shares it any more. So a view outlives its batch, and any number of batches can be held, as far as the
    memory limits of the pipeline allow.
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
        hold: Callable[[Done], None],
    ) -> None:
        self._fields: dict[str, Any] | None = dict(fields)
        self._main = main
        self._hold: Callable[[Done], None] | None = hold  # has the lease; with an event, keeps it until then
        self._ready_stream = ready_stream
        self.batch_id = batch_id
        self.samples = samples
        self.numbers = numbers
        self.key = key

    def __repr__(self) -> str:
        what = "released" if self._fields is None else ", ".join(self._fields)
        return f"Batch({self.batch_id}, samples={len(self)}: {what})"

    def __len__(self) -> int:
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
            raise InvalidArgument(f"the samples {missing} have no label: pass Sample(..., label=...) for all of them")
        try:
            return np.array([sample.label for sample in self.samples])
        except ValueError as error:
            raise InvalidArgument(f"the labels of a batch must have one shape: {error}") from error

    @property
    def meta(self) -> tuple[Any, ...]:
        """The values of `Sample.meta`, one for each sample."""
        return tuple(sample.meta for sample in self.samples)

    @property
    def info(self) -> BatchInfo:
        """The location of the crops.

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
        """bool[B, *sample_shape]: which voxels of the crops are inside their array.

        Raises:
            InvalidArgument: the configuration has neither ``pad=`` nor ``mask=True``, or the batch was released.
        """
        fields = self.fields
        if self._main + MASK_SUFFIX not in fields:
            raise InvalidArgument("there is no mask: set pad= or mask=True in the configuration")
        return fields[self._main + MASK_SUFFIX]

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the crops as a DLPack capsule: in the first version of the protocol unless `max_version` allows 1.0.

        Args:
            stream: stream of the consumer that has to wait for the crops; see the protocol.
            max_version: newest version that the consumer supports.
            dl_device: device on which the consumer wants the crops.
            copy: True = make a copy, False = never, None = if necessary.

        Raises:
            InvalidArgument: the batch was released.
            BufferError: the crops cannot be exported as requested.
        """
        crops = self._crops()
        wishes = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        if isinstance(crops, np.ndarray) or crops.device.type == "cpu":
            wishes["stream"] = None  # there is nothing to wait for on a CPU, whatever the consumer passes
        # without those that are None, so that producers with the first version of the protocol accept the call
        given = {name: wish for name, wish in wishes.items() if wish is not None}
        if not isinstance(crops, np.ndarray):
            return crops.__dlpack__(**given)
        if crops.dtype.name == "bfloat16":
            raise BufferError(
                "NumPy cannot export bfloat16 by DLPack, but torch can: install torch and use device='cpu', "
                'or use dtype="f32"'
            )
        try:
            return crops.__dlpack__(**given)
        except TypeError:  # NumPy before 2.1 supports only the first version of the protocol
            return crops.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return type and number of the device of the crops.

        Raises:
            InvalidArgument: the batch was released.
        """
        kind, number = self._crops().__dlpack_device__()
        return int(kind), int(number)

    def release(self, event: Any = None) -> None:
        """Give the memory back: it is reused when nothing shares it any more. Calling it twice is fine.

        Args:
            event: work on the device that must finish first: a CUDA event or stream of torch or CuPy, the handle
                of a stream, or a JAX array that is being computed. None = work on the current stream.

        Raises:
            InvalidArgument: `event` is none of these.
        """
        hold, self._hold = self._hold, None
        try:
            if hold is not None and (done := waitable(event)) is not None:
                hold(done)  # before the fields are dropped, which may drop the last views
        finally:
            self._fields = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by name.

        Raises:
            InvalidArgument: the batch was released.
        """
        if self._fields is None:
            raise InvalidArgument(
                f"batch {self.batch_id} was released, and its memory may hold other samples now: copy what you need "
                "before that; views and tensors taken from it stay valid"
            )
        return self._fields

    def _crops(self) -> Any:
        fields = self.fields
        if self._main not in fields:
            raise InvalidArgument(
                f"transform= dropped the field {self._main!r}, which represents the batch: access another field by name"
            )
        return fields[self._main]


def waitable(event: Any) -> Done | None:
    """Return an object to wait for: an event itself, or the work submitted to a stream so far.

    Args:
        event: event or stream of torch or CuPy, handle of a CUDA stream as an int, a JAX array (awaited until it is
            computed), or None.

    Raises:
        InvalidArgument: it is none of these, or a handle on a machine without CUDA.
    """
    if event is None:
        return None
    if isinstance(event, int) and not isinstance(event, bool):
        import torch

        if not torch.cuda.is_available():
            raise InvalidArgument(f"event={event} is the handle of a CUDA stream, but there is no CUDA device here")
        event = torch.cuda.ExternalStream(event)  # type: ignore[no-untyped-call]
    if hasattr(event, "record_event"):  # a torch stream
        event = event.record_event()
    elif hasattr(event, "wait_event") and hasattr(event, "record"):  # a CuPy stream
        event = event.record()
    try:
        return done_of(event)
    except ConfigError as error:
        raise InvalidArgument(
            "event= must be an event or stream of torch or CuPy, a stream handle, or a JAX array; got "
            f"{type(event).__name__}"
        ) from error


def drop_finished(held: deque[tuple[Done, object]]) -> None:
    """Drop objects whose event has happened, in order; wait for events that cannot be queried."""
    while held:
        event = held[0][0]
        query = getattr(event, "query", None)
        if query is None:
            event.synchronize()
        elif not query():
            return
        held.popleft()
