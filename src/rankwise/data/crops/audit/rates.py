"""How fast one core decodes: a small table of measured speeds, which `rankwise data bench` can replace by own ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["Rates", "load_rates", "rates_file", "save_rate"]

# Decoded bytes per CPU second of one core: "none", "zstd-1", "zstd-3", "blosc-zstd" and "blosc-lz4" as `bench/crops.py`
# measured them on 16-bit images in chunks of 256 KiB; the others are their neighbours' or rough.
_DECODE = {
    "none": 100e9,
    "blosc-lz4": 9e9,
    "blosc-lz4hc": 9e9,
    "blosc-blosclz": 5e9,
    "blosc-zstd": 1.8e9,
    "blosc-zlib": 0.5e9,
    "lz4": 3e9,
    "zstd-1": 1.45e9,
    "zstd-3": 0.85e9,
    "zstd": 0.85e9,
}
_SLOW = 0.35e9  # through zarr-python, whatever the codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Costs of one core.

    Attributes:
        origin: where the numbers come from, in words.
        decode: decoded bytes per second for each codec.
        chunk_s: seconds per chunk, whatever its size: planning, the read call, the start of a decoder.
        read_bytes_per_s: encoded bytes copied out of the page cache per second.
        cast_s: seconds per element cast into the batch.
    """

    origin: str = "built-in table (a core of an AMD EPYC server)"
    decode: Mapping[str, float] = field(default_factory=lambda: dict(_DECODE))
    chunk_s: float = 10e-6
    read_bytes_per_s: float = 8e9
    cast_s: float = 0.6e-9

    def decode_bytes_per_s(self, codec: str, *, fast: bool) -> float:
        """Return the speed of a codec; of a zstd level that is not listed, that of the nearest one below."""
        if codec in self.decode:
            return self.decode[codec]
        if not fast:
            return self.decode.get("slow path", _SLOW)
        if codec.startswith("zstd"):
            return self.decode["zstd-1" if codec.removeprefix("zstd").removeprefix("-") in {"0", "2"} else "zstd-3"]
        return self.decode.get(codec, self.decode["blosc-zstd"])


def rates_file() -> Path:
    """Return where this machine's own speeds are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home:
        folder = Path(home)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = Path.home() / ".cache"
    return folder / "rankwise" / "rates.json"


def load_rates(path: Path | None = None) -> Rates:
    """Return the table, with this machine's own speeds in it where they were measured.

    Raises:
        ConfigError: the file of own speeds cannot be understood.
    """
    path = path or rates_file()
    try:
        kept = json.loads(path.read_text())
        own = {str(codec): float(speed) for codec, speed in kept["decode"].items()}
    except FileNotFoundError:
        return Rates()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is no table of decoding speeds ({error}): delete it, or measure again") from error
    return replace(
        Rates(), decode={**_DECODE, **own}, origin=f"table measured here ({', '.join(sorted(own))}; else built-in)"
    )


def save_rate(codec: str, bytes_per_s: float, path: Path | None = None) -> Path:
    """Keep the speed of a codec on this machine; return the file."""
    path = path or rates_file()
    own: dict[str, float] = {}
    if path.exists():
        load_rates(path)  # says what is wrong with it
        own = json.loads(path.read_text())["decode"]
    own[codec] = bytes_per_s
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"decode": own}, indent=1))
    partial.replace(path)
    return path
