"""Parse option values of the commands about crops: extents, dtypes, alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from rankwise.data.contract import DType

__all__ = ["parse_align", "parse_dtype", "parse_extents"]

_SHORT = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}


def parse_extents(word: str) -> tuple[int, ...]:
    """Turn "16,128,128" (or "16x128x128") into extents.

    Raises:
        ConfigError: the numbers are not positive.
    """
    parts = word.replace("x", ",").split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--crop takes extents >= 1 separated by commas, such as 16,128,128; got {word!r}")
    return tuple(int(part) for part in parts)


def parse_dtype(word: str) -> DType | None:
    """Turn "float32", "f32", "bf16", "uint16" into a dtype; "native" (as stored) into None.

    Raises:
        ConfigError: there is no such dtype.
        MissingExtraError: bfloat16 is given, but its package is not installed.
    """
    import numpy as np

    name = _SHORT.get(word, word)
    if name == "native":
        return None
    if name == "bfloat16":
        with needs_extra("bfloat16 needs ml_dtypes: pip install 'rankwise[data]'"):
            from ml_dtypes import bfloat16
        narrow: DType = np.dtype(bfloat16)
        return narrow
    try:
        return np.dtype(name)
    except TypeError as error:
        raise ConfigError(f"--dtype takes native, float32, bfloat16, float16, uint8, ...; got {word!r}") from error


def parse_align(word: str) -> bool:
    """Turn `--align` into whether origins lie on the grid of chunks.

    Raises:
        ConfigError: an unknown word.
    """
    if word not in {"none", "chunk"}:
        raise ConfigError(f'--align takes "none" or "chunk", got {word!r}')
    return word == "chunk"
