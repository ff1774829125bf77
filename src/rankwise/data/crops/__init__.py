"""Batches of nD boxes from Zarr arrays, on any device."""

from __future__ import annotations

from rankwise.data.crops.batch import Batch, BatchInfo
from rankwise.data.crops.config import Config, Field, LatencyModel, set_log_level, set_log_quiet
from rankwise.data.crops.devices import NumaStrategy, max_concurrency
from rankwise.data.crops.exceptions import (
    BudgetExceeded,
    DamacyError,
    DecodeError,
    DtypeMismatch,
    InvalidArgument,
    InvalidSample,
    NativeCudaError,
    NotFound,
    OutOfMemory,
    PoolStarved,
    RankMismatch,
    ShutdownError,
    Status,
    StorageError,
    TryAgain,
)
from rankwise.data.crops.fields import Scaling
from rankwise.data.crops.index.crop_index import CropIndex, CropPlace
from rankwise.data.crops.index.image import CropImage, Take, plain_level
from rankwise.data.crops.index.pipeline import IndexPipeline
from rankwise.data.crops.index.rules import Foreground, Mask, Stage
from rankwise.data.crops.sample import Crop, Dtype, Sample
from rankwise.data.crops.stats import Metric, Stats
from rankwise.data.crops.stitching.stitcher import StitchedVolume, Stitcher
from rankwise.data.crops.stream.pipeline import Pipeline

__all__ = [
    "Batch",
    "BatchInfo",
    "BudgetExceeded",
    "Config",
    "Crop",
    "CropImage",
    "CropIndex",
    "CropPlace",
    "DamacyError",
    "DecodeError",
    "Dtype",
    "DtypeMismatch",
    "Field",
    "Foreground",
    "IndexPipeline",
    "InvalidArgument",
    "InvalidSample",
    "LatencyModel",
    "Mask",
    "Metric",
    "NativeCudaError",
    "NotFound",
    "NumaStrategy",
    "OutOfMemory",
    "Pipeline",
    "PoolStarved",
    "RankMismatch",
    "Sample",
    "Scaling",
    "ShutdownError",
    "Stage",
    "Stats",
    "Status",
    "StitchedVolume",
    "Stitcher",
    "StorageError",
    "Take",
    "TryAgain",
    "max_concurrency",
    "plain_level",
    "set_log_level",
    "set_log_quiet",
]
