"""Memory of batches: a fixed number of slots, each lent to one batch and back when nothing looks at it any more."""

from __future__ import annotations

import math
import queue
import weakref
from collections.abc import Callable, Mapping

import numpy as np

from rankwise.data.contract import BoolArray, FieldSpec, NDArray
from rankwise.data.crops.exceptions import BudgetExceeded
from rankwise.data.feed.allocating import allocate_bytes
from rankwise.data.feed.done import Done
from rankwise.errors import ConfigError

__all__ = ["LentBuffer", "Ring"]


class _Slot:
    """Memory that one batch after the other uses; grows to the largest batch it has held."""

    def __init__(self, *, pinned: bool, limit_bytes: int | None) -> None:
        self._pinned = pinned
        self._limit_bytes = limit_bytes
        self._memory: dict[str, NDArray] = {}
        self.busy: Done | None = None

    @property
    def num_bytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())

    def room(self, name: str, num_bytes: int) -> NDArray:
        """At least `num_bytes` bytes under a name, aligned."""
        held = self._memory.get(name)
        if held is None or held.nbytes < num_bytes:
            self._memory.pop(name, None)
            if self._limit_bytes is not None and self.num_bytes + num_bytes > self._limit_bytes:
                raise BudgetExceeded(
                    f"a batch takes at least {self.num_bytes + num_bytes} bytes, a batch buffer may take "
                    f"{self._limit_bytes}: raise max_gpu_memory_bytes (or max_host_memory_bytes), or take fewer "
                    "samples_per_batch; transform= may have made them larger"
                )
            held = self._memory[name] = allocate_bytes(num_bytes, pinned=self._pinned)
        return held[:num_bytes]


class _Loan:
    """One batch's right to a slot. The slot comes back when the last array over it, and the batch itself, are gone."""


class _Lent:
    """Memory as NumPy takes it over, together with the loan that it is on."""

    def __init__(self, memory: NDArray, loan: _Loan) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._kept = memory, loan


class LentBuffer:
    """Implements `BatchBuffer` over a slot; one for each batch.

    Arrays that it gives, and everything that shares their memory (views, tensors, DLPack), keep the slot out of use,
    and so does this object.

    Args:
        slot: the memory; None = memory of its own.
    """

    def __init__(self, slot: _Slot | None = None) -> None:
        self._slot = _Slot(pinned=False, limit_bytes=None) if slot is None else slot
        self._loan = _Loan()
        self._views: dict[str, NDArray] = {}

    @property
    def busy(self) -> Done | None:
        """What must have happened before the memory is written again."""
        return self._slot.busy

    @busy.setter
    def busy(self, event: Done | None) -> None:
        self._slot.busy = event

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of dense fields; see `BatchBuffer`.

        Raises:
            ConfigError: a field is ragged.
            BudgetExceeded: the batch is larger than its slot may be.
        """
        if any(spec.ragged for spec in specs.values()) or capacity:
            raise ConfigError("crops are dense: a buffer of crops holds no ragged field")
        if self._slot.busy is not None:
            self._slot.busy.synchronize()
            self._slot.busy = None
        self._views = {name: self._view(name, spec, num_samples) for name, spec in specs.items()}

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the array of a field, [B, *shape].

        Raises:
            KeyError: the field was not reserved.
        """
        return (self._views[field],)

    def keep(self, kept: BoolArray) -> None:
        """Move the rows that are kept, bool[B], to the front and forget the others."""
        rows = np.flatnonzero(kept).tolist()
        for name, view in self._views.items():
            for to, row in enumerate(rows):
                if to != row:
                    view[to] = view[row]
            self._views[name] = view[: len(rows)]

    def _view(self, name: str, spec: FieldSpec, num_samples: int) -> NDArray:
        shape = (num_samples, *spec.shape)
        num_bytes = math.prod(shape) * spec.dtype.itemsize
        lent = np.asarray(_Lent(self._slot.room(name, num_bytes), self._loan))
        return lent.view(spec.dtype).reshape(shape)

    def on_return(self, tell: Callable[[_Slot], None]) -> None:
        """Call ``tell(slot)`` once nothing uses the memory any more."""
        # at the exit of the interpreter nobody waits for the slot
        weakref.finalize(self._loan, tell, self._slot).atexit = False


class Ring:
    """A fixed number of slots. Thread-safe.

    Args:
        num_slots: how many.
        pinned: page-locked memory, for asynchronous copies to a CUDA device.
        limit_bytes: most bytes of one slot; None = any.
    """

    def __init__(self, num_slots: int, *, pinned: bool = False, limit_bytes: int | None = None) -> None:
        self.num_slots = num_slots
        # SimpleQueue is the one queue that finalizers may use: they run in any thread, in the middle of anything
        self._free: queue.SimpleQueue[_Slot | None] = queue.SimpleQueue()
        for _ in range(num_slots):
            self._free.put(_Slot(pinned=pinned, limit_bytes=limit_bytes))

    @property
    def num_free(self) -> int:
        """Slots that nothing uses now."""
        return min(self.num_slots, self._free.qsize())

    def borrow(self) -> LentBuffer | None:
        """Return a buffer over a free slot; waits for one. None once closed."""
        slot = self._free.get()
        if slot is None:
            self._free.put(None)  # for whoever else waits
            return None
        buffer = LentBuffer(slot)
        buffer.on_return(self._free.put)
        return buffer

    def close(self) -> None:
        """Let everybody who waits go, empty-handed; what is lent stays valid as long as somebody uses it."""
        while True:
            try:
                self._free.get_nowait()
            except queue.Empty:
                break
        self._free.put(None)
