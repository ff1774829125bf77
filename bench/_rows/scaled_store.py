"""A store with any number of rows on a small disk: real row pointers and labels, but one matrix shard under many names.

The pointers of all rows and two label columns are written in full. Of each matrix array one shard is written, and all
others are hard links to it. So everything kept per row is as large as in a real store, and every wanted chunk is read
and decoded. Rows have 488 to 519 elements.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

PER_ROW, COLS, ROWS_PER_CHUNK = 504, 8_000, 64
LABELS = {"donor": 100, "cell_type": 12}
_BLOCK = 2**20
_RUN = 20_000  # neighbouring rows of one donor
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStore:
    """What is written.

    Attributes:
        rows: rows.
        chunks_per_shard: chunks of 64 mean rows in a file of the matrix.
    """

    rows: int
    chunks_per_shard: int

    @classmethod
    def of(cls, rows: int) -> ScaledStore:
        """Return files of a size that suits the number of rows."""
        return cls(rows=rows, chunks_per_shard=1_000 if rows >= 10_000_000 else 4)

    def write(self, folder: Path) -> str:
        """Return the path of the store, which is written first if it is not there yet."""
        store, finished = folder / f"rows-{self.rows}.zarr", folder / f"rows-{self.rows}.json"
        wanted = {**asdict(self), "made": 1}
        if not finished.exists() or json.loads(finished.read_text()) != wanted:
            finished.unlink(missing_ok=True)
            shutil.rmtree(store, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            self._write(store)
            finished.write_text(json.dumps(wanted))
        return str(store)

    def lengths(self, first: int, stop: int) -> np.ndarray:
        """Return the elements of rows, int64."""
        words = np.arange(first, stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return PER_ROW - 16 + (words >> np.uint64(59)).astype(np.int64)

    def _write(self, store: Path) -> None:
        import zarr

        root = zarr.open_group(store, mode="w", zarr_format=3)
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        matrix = root.create_group("X")
        num_elements = self._write_pointers(matrix)
        matrix.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [self.rows, COLS]})
        rng, chunk = np.random.default_rng(_SEED), ROWS_PER_CHUNK * PER_ROW
        shard = min(self.chunks_per_shard, -(-num_elements // chunk)) * chunk
        values = {
            "data": rng.integers(1, 30, shard).astype(np.float32),
            "indices": (np.arange(shard) % PER_ROW * 15 + rng.integers(0, 15, shard)).astype(np.uint16),
        }
        for name, held in values.items():
            array = _create(matrix, name, num_elements, held.dtype, chunk=chunk, shard=shard)
            array[:shard] = held[: min(shard, num_elements)]
            _link(store / "X" / name / "c", -(-num_elements // shard))
        self._write_tables(root)

    def _write_pointers(self, matrix: Any) -> int:
        """Write them block by block; return the number of elements."""
        shard = min(_BLOCK, -(-self.rows // 32_768) * 32_768)
        array = _create(matrix, "indptr", self.rows + 1, np.int64, chunk=32_768, shard=shard)
        total = 0
        for first in range(0, self.rows + 1, shard):
            stop = min(first + shard, self.rows + 1)
            lengths = self.lengths(first, stop)
            ends = total + np.cumsum(lengths)
            array[first:stop] = ends - lengths
            total = int(ends[-1])
        return total - int(lengths[-1])  # the last pointer is the end, not a row

    def _write_tables(self, root: Any) -> None:
        obs = root.create_group("obs")
        obs.attrs.update(_table(list(LABELS)))
        _create(obs, "_index", self.rows, np.int64, chunk=_BLOCK, shard=_BLOCK)  # its numbers are never read
        for name, count in LABELS.items():
            group = obs.create_group(name)
            group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
            labels = np.array([f"{name} {number}" for number in range(count)], dtype=object)
            _write_element(group, "categories", labels)
            codes = _create(group, "codes", self.rows, np.int8, chunk=_BLOCK, shard=_BLOCK)
            codes.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
            for first in range(0, self.rows, _BLOCK):
                rows = np.arange(first, min(first + _BLOCK, self.rows), dtype=np.int64)
                codes[first : first + len(rows)] = (rows // _RUN if name == "donor" else rows * 7919 // 11) % count
        var = root.create_group("var")
        var.attrs.update(_table([]))
        _write_element(var, "_index", np.array([f"gene{number}" for number in range(COLS)], dtype=object))


def _table(columns: list[str]) -> dict[str, Any]:
    kind = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
    return {**kind, "_index": "_index", "column-order": columns}


def _create(group: Any, name: str, length: int, dtype: Any, *, chunk: int, shard: int) -> Any:
    from zarr.codecs import BloscCodec

    compressors = BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")
    return group.create_array(
        name, shape=(length,), dtype=dtype, chunks=(chunk,), shards=(shard,), compressors=compressors, fill_value=0
    )


def _write_element(group: Any, name: str, values: np.ndarray) -> None:
    import anndata

    anndata.io.write_elem(group, name, values)


def _link(folder: Path, count: int) -> None:
    for number in range(1, count):
        os.link(folder / "0", folder / str(number))
