"""One sample = `array[i]` of Zarr or NumPy arrays, or an item of any map-style torch `Dataset`."""

from __future__ import annotations

from rankwise.data.feed.batch import FeedBatch, LoaderStats
from rankwise.data.feed.loader import FeedLoader
from rankwise.data.samples.dataset import DatasetLoader
from rankwise.data.samples.dataset_batch import DatasetBatch
from rankwise.data.samples.keyed import sample_key
from rankwise.data.samples.source import ArrayPlan, ArraySource, SampleLoader

__all__ = [
    "ArrayPlan", "ArraySource", "DatasetBatch", "DatasetLoader", "FeedBatch", "FeedLoader", "LoaderStats",
    "SampleLoader", "sample_key",
]  # fmt: skip
