"""Reads, decodes, casts and places chunks in a batch, in compiled code if possible."""

from __future__ import annotations

from rankwise.data.store.decode.choice import choose_decoder
from rankwise.data.store.decode.decoder import Decoder, Scratch, Spreader
from rankwise.data.store.decode.pairs import is_castable
from rankwise.data.store.decode.tasks import (
    KIND_BLOSC,
    KIND_FILL,
    KIND_LZ4,
    KIND_RAW,
    KIND_ZSTD,
    ChunkTasks,
    address_of,
    describe,
    is_damage,
)

__all__ = [
    "KIND_BLOSC",
    "KIND_FILL",
    "KIND_LZ4",
    "KIND_RAW",
    "KIND_ZSTD",
    "ChunkTasks",
    "Decoder",
    "Scratch",
    "Spreader",
    "address_of",
    "choose_decoder",
    "describe",
    "is_castable",
    "is_damage",
]
