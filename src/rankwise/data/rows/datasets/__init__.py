"""AnnData stores as training sees them: matrices by row, columns about the rows."""

from __future__ import annotations

from rankwise.data.rows.datasets.dataset import Dataset
from rankwise.data.rows.datasets.extras import load_anndata
from rankwise.data.rows.datasets.finding import COLLECTION_TYPE, MANIFEST, find_datasets
from rankwise.data.rows.datasets.modality import split_modality, stored_name

__all__ = ["COLLECTION_TYPE", "MANIFEST", "Dataset", "find_datasets", "load_anndata", "split_modality", "stored_name"]
