"""How reading and decoding one chunk went, in codes that a compiled loop can write, and in words."""

from __future__ import annotations

import os

__all__ = [
    "BAD_FRAME",
    "CUT_SHORT",
    "NOT_RUN",
    "OK",
    "OS_ERROR",
    "OUT_OF_RANGE",
    "TOO_LONG",
    "UNKNOWN_COMPRESSOR",
    "UNKNOWN_KIND",
    "WRONG_LENGTH",
    "WRONG_SIZE",
    "describe",
    "is_damage",
]

OK = 0
CUT_SHORT = 1  # the file ends inside the chunk; detail: bytes that came
OS_ERROR = 2  # detail: errno
BAD_FRAME = 3  # the decoder refuses the bytes; detail: what it returned
WRONG_SIZE = 4  # decodes to something else than a chunk; detail: bytes it decodes to, -1 if unknown
WRONG_LENGTH = 5  # more or fewer encoded bytes than the frame (or the shape, of raw chunks) says; detail: what it says
OUT_OF_RANGE = 6  # a value does not fit the output's integer dtype
UNKNOWN_COMPRESSOR = 7  # inside a Blosc frame; detail: its number there
TOO_LONG = 8  # more encoded bytes than any encoder makes of a chunk; detail: the most that were expected
UNKNOWN_KIND = 9  # detail: the kind
NOT_RUN = -1  # for callers that mark what no thread has reached yet

_BLOSC_COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")


def is_damage(status: int) -> bool:
    """Whether the content is to blame; False for trouble with the storage, which may pass, and for our own limits."""
    return status in (CUT_SHORT, BAD_FRAME, WRONG_SIZE, WRONG_LENGTH, TOO_LONG)


def describe(status: int, detail: int, *, length: int, chunk_bytes: int) -> str:
    """Return what went wrong with a chunk, in words that follow its place.

    Args:
        status: code from ``ChunkTasks.status``.
        detail: number from ``ChunkTasks.detail``.
        length: encoded bytes that were to be read.
        chunk_bytes: bytes that one decoded chunk has.
    """
    size = "another number of" if detail < 0 else f"{detail}"
    return {
        OK: "is well",
        CUT_SHORT: f"is cut short: {detail} of {length} bytes could be read",
        OS_ERROR: f"cannot be read: {_system_error(status, detail)} (errno {detail})",
        BAD_FRAME: f"is damaged: its decoder refuses its {length} bytes (code {detail})",
        WRONG_SIZE: f"is damaged: it decodes to {size} bytes, a chunk has {chunk_bytes}",
        WRONG_LENGTH: f"is damaged: it has {length} bytes and should have {size}",
        OUT_OF_RANGE: "holds values that do not fit the dtype that was asked for: choose a wider dtype",
        UNKNOWN_COMPRESSOR: f"is compressed with {_compressor(detail)}, which this build of numcodecs does not know",
        TOO_LONG: f"is damaged: it has {length} bytes, no encoder needs more than {detail} for a chunk",
        UNKNOWN_KIND: f"is of the unknown kind {detail}",
        NOT_RUN: "was not reached",
    }.get(status, f"failed with the unknown status {status} (detail {detail})")


def _system_error(status: int, detail: int) -> str:
    """Words for a number of the system; other statuses have details that are too large for it."""
    return os.strerror(max(detail, 0)) if status == OS_ERROR else ""


def _compressor(number: int) -> str:
    return _BLOSC_COMPRESSORS[number] if 0 <= number < len(_BLOSC_COMPRESSORS) else f"compressor {number} of Blosc"
