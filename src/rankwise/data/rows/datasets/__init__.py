"""AnnData on disk and in memory, as training sees them: matrices by row, columns with one value per row."""

from __future__ import annotations

from typing import TypeAlias

from rankwise.data.rows.datasets.checksums import array_checksums, check_files
from rankwise.data.rows.datasets.in_memory import MemoryDataset, is_anndata, is_h5ad
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.datasets.search import (
    COLLECTION_TYPE,
    MANIFEST,
    find_datasets,
    load_anndata,
    member_names,
    open_group,
    split_modality,
    stored_name,
)
from rankwise.data.store import BoxReader

__all__ = [
    "COLLECTION_TYPE",
    "MANIFEST",
    "AnyDataset",
    "Dataset",
    "MemoryDataset",
    "array_checksums",
    "check_files",
    "find_datasets",
    "is_anndata",
    "is_h5ad",
    "load_anndata",
    "member_names",
    "open_dataset",
    "open_group",
    "split_modality",
    "stored_name",
]

AnyDataset: TypeAlias = Dataset | MemoryDataset


def open_dataset(place: str | MemoryDataset, reader: BoxReader) -> AnyDataset:
    """Open the dataset at a place; return a dataset in memory unchanged."""
    return place if isinstance(place, MemoryDataset) else Dataset(place, reader)
