"""Tests that need a CUDA device, PyTorch, NumPy and pytest, and nothing else: `make test-gpu`.

Data lie in memory. What also wants zarr or JAX skips where these are not installed. Without a CUDA device they fail:
who asked for them wants to know.
"""

import numpy as np
import pytest
import torch

from rankwise.data.contract import BaseSource, FieldSpec, Locality, ReadReport


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch):
    """A world of one on the GPU, whatever launcher has started the tests; the device is idle again afterwards."""
    if not torch.cuda.is_available():
        pytest.fail(f"torch {torch.__version__} sees no CUDA device: these tests are for a machine that has one")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.cuda.synchronize()


class _Plan:
    def __init__(self, share, capacity):
        self.share, self.capacity = share, capacity
        self.num_chunks = self.read_bytes = self.decode_bytes = 0


class MemoryRows(BaseSource):
    """A source of sparse rows in memory: row i has i % 7 values, in the columns i, i + 1, ... (modulo their number)."""

    def __init__(self, num_samples=500, num_cols=40):
        self.fingerprint, self.num_samples, self.num_cols = "memory-rows", num_samples, num_cols
        self.fields = {"row": FieldSpec(shape=(num_cols,), dtype=np.dtype("f4"), ragged=True)}

    @property
    def locality(self):
        return Locality(chunk_samples=16)

    def dense(self, ids):
        """The rows as an array."""
        found = np.zeros((len(ids), self.num_cols), np.float32)
        for place, row in enumerate(ids):
            for k in range(row % 7):
                found[place, (row + k) % self.num_cols] = row + k
        return found

    def plan(self, share):
        return _Plan(share, {"row": int(sum(row % 7 for row in share.ids.tolist()))})

    def hint(self, plan):
        pass

    def read(self, plan, into):
        ids = plan.share.ids
        into.reserve(self.fields, len(ids), plan.capacity)
        data, indices, indptr = into.arrays("row")
        dense = self.dense(ids.tolist())
        end = indptr[0] = 0
        for place, row in enumerate(dense):
            (columns,) = row.nonzero()
            # a value may be 0 in row 0 only, which has none
            data[end : end + len(columns)], indices[end : end + len(columns)] = row[columns], columns
            end += len(columns)
            indptr[place + 1] = end
        return ReadReport(valid=np.ones(len(ids), bool))


@pytest.fixture
def memory_rows():
    return MemoryRows()
