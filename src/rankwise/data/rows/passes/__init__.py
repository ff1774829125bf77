"""One pass of a sampler: its random numbers, its range, its share among the workers of a DataLoader."""

from __future__ import annotations

from rankwise.data.rows.passes.draws import PassDraws, RequestSizes, fresh_seed, known_settings, make_generator
from rankwise.data.rows.passes.ranges import EpochMark, check_mask, circle, mask_bounds, mask_settings

__all__ = [
    "EpochMark",
    "PassDraws",
    "RequestSizes",
    "check_mask",
    "circle",
    "fresh_seed",
    "known_settings",
    "make_generator",
    "mask_bounds",
    "mask_settings",
]
