"""Rows of a Zarr array: each row is a box of the reading engine."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray
from rankwise.data.store import ArrayMeta, BoxError, BoxPlan, BoxReader, BoxReport, BoxRequest, name_lacking
from rankwise.errors import DataError, SampleError

__all__ = ["StoredColumn"]


class StoredColumn:
    """One field of the samples in a Zarr array; sample i is row i.

    Args:
        array: the array.
        reader: tells the sizes of its files.
        missing: "fill" takes the fill value for chunks that are not in the store, "error" refuses them.

    Raises:
        DataError: its first or last file cannot be looked at.
    """

    def __init__(self, array: ArrayMeta, reader: BoxReader, *, missing: str) -> None:
        self.array = array
        self._missing = missing
        self.place = array.place
        self.num_rows = array.shape[0]
        self.chunk_rows = array.chunks[0]
        self.spec = FieldSpec(shape=array.shape[1:], dtype=array.dtype)
        self.fingerprint = _fingerprint(array, reader)

    def cached_bytes(self, num_rows: int) -> int:
        """Return the bytes that neighbouring rows take in the cache, where chunks are kept whole."""
        across = (-(-size // chunk) for size, chunk in zip(self.array.shape[1:], self.array.chunks[1:], strict=True))
        return -(-num_rows // self.chunk_rows) * math.prod(across) * self.array.chunk_bytes

    def request(self, ids: IntArray) -> BoxRequest | None:
        """Return what is asked of the engine for some rows; None where rows hold no elements.

        Args:
            ids: int64[B].
        """
        if 0 in self.spec.shape:
            return None
        starts = np.zeros((len(ids), self.array.ndim), dtype=np.int64)
        starts[:, 0] = ids
        return BoxRequest(
            arrays=(self.array,),
            which=np.zeros(len(ids), dtype=np.int64),
            starts=starts,
            shape=(1, *self.spec.shape),
            dtype=self.spec.dtype,
        )

    def errors(self, ids: IntArray, plan: BoxPlan, report: BoxReport) -> dict[int, SampleError]:
        """Return what is wrong with rows, by their place in the batch.

        Args:
            ids: int64[B].
            plan: how they were read.
            report: how that went.
        """
        found = {error.box: _sample_error(int(ids[error.box]), error) for error in report.errors}
        if self._missing == "error":
            for box in np.flatnonzero(report.missing_boxes).tolist():
                found.setdefault(box, _sample_error(int(ids[box]), self._incomplete(box, plan)))
        return found

    def _incomplete(self, box: int, plan: BoxPlan) -> BoxError:
        """Say which chunk a row lacks, as far as planning knew."""
        return BoxError(
            box=box,
            place=self.place,
            error=DataError(
                f"{name_lacking(plan, box)} and would stand for the fill value: copy the store whole, or allow it with "
                "missing='fill'"
            ),
        )


def _sample_error(sample: int, error: BoxError) -> SampleError:
    made = SampleError(
        f"sample {sample} cannot be read: {error.error}", sample=sample, place=error.place, damage=error.damage
    )
    made.__cause__ = error.error
    return made


def _fingerprint(array: ArrayMeta, reader: BoxReader) -> str:
    """Shape, dtype, grid, and how many bytes the first and the last file have: equal for a copy elsewhere."""
    sizes = []
    if 0 not in array.shape:
        last = tuple((size - 1) // file for size, file in zip(array.shape, array.files, strict=True))
        sizes = [reader.stored_bytes(array, coords) for coords in ((0,) * array.ndim, last)]
    facts = [array.shape, array.dtype.str, array.chunks, array.files if array.sharded else None, sizes]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
