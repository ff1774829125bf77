"""Small stores of rows."""

import pytest
import scipy.sparse as sp
import zarr

from rankwise.data.store import BoxReader
from rankwise.testing.stores.small_rows import random_csr, write_csr


@pytest.fixture
def reader():
    with BoxReader(threads=2, cache=2**16) as reader:
        yield reader


@pytest.fixture
def csr_store(tmp_path):
    """A group of two CSR matrices, and what they hold together."""
    group = zarr.open_group(str(tmp_path / "cells.zarr"), mode="w")
    parts = [random_csr(83, 17, seed=1), random_csr(60, 17, seed=2)]
    for number, part in enumerate(parts):
        write_csr(group, f"m{number}", part)
    return str(tmp_path / "cells.zarr"), sp.vstack(parts).tocsr()
