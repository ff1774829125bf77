"""What an order takes from its samples: the samples opened, lanes and window from metadata alone, and the recipe.

An order is arithmetic and knows no stores. A package that can open stores registers on import with `add_opener`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

from rankwise.data.contract import JSON, BaseSamples, FieldSpec, Locality, not_drawn, whole_number
from rankwise.data.order.lanes import Grid
from rankwise.errors import ConfigError

# Limit for the decoded bytes of the windows of all lanes together.
WINDOW_BYTES = 128 << 20
# Chunks per window if the chunk size is unknown.
DEFAULT_WINDOW = 16
# More lanes do not improve locality, and each costs a table entry per epoch.
MAX_LANES = 4096
DEFAULT_LANES = 64
# Sums of a few sizes still fit into 64 bits.
MAX_SAMPLES = 1 << 60

Opener: TypeAlias = Callable[[Any], Any]

_OPENERS: list[Opener] = []


def add_opener(opener: Opener) -> None:
    """Allow orders over more than numbers and sources.

    Args:
        opener: returns a `Source` for input that it supports, else None.
    """
    if opener not in _OPENERS:
        _OPENERS.append(opener)


def opened_samples(samples: Any, draw: Mapping[str, Any]) -> Any:
    """Return samples that can be counted: opens them if an opener supports them, and draws from them if asked to.

    Args:
        samples: what the user passed to an order.
        draw: arguments for the source's ``drawn``; empty = do not draw.

    Raises:
        ConfigError: no opener supports this path, or the samples cannot be drawn.
    """
    found = next((source for opener in _OPENERS if (source := opener(samples)) is not None), samples)
    if isinstance(found, (str, os.PathLike)):
        raise ConfigError(
            f"Order needs samples, got the path {os.fspath(found)!r}: `import rankwise.data.rows` opens AnnData "
            "stores and collections; for other data pass the source or the number of samples"
        )
    if not draw:
        return found
    if not isinstance(found, BaseSamples):
        raise ConfigError(not_drawn(draw, found))
    return found.drawn(**draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts from metadata about the samples of an order; None for unknown facts.

    Attributes:
        num_samples: number of samples.
        locality: what neighbouring samples share.
        chunk_bytes: decoded bytes per chunk, over all fields.
        fingerprint: hash of the content's metadata.
        draw: how the samples were drawn, for the loader that draws them again; not used here.
    """

    num_samples: int
    locality: Locality | None = None
    chunk_bytes: int | None = None
    fingerprint: str | None = None
    draw: Any = None

    @classmethod
    def of(cls, samples: Any) -> Facts:
        """Return the facts of a number of samples, a `Source`, or anything with ``len()``.

        Raises:
            ConfigError: `samples` is none of these, or is empty.
        """
        source: Any = samples if isinstance(samples, BaseSamples) else None  # a subclass may have more members
        given = source.num_samples if source is not None else len(samples) if isinstance(samples, Sized) else samples
        count = whole_number("samples of an Order (number, source, or a len())", given, least=0, most=MAX_SAMPLES)
        if not count:
            raise ConfigError("an Order needs samples, got 0: look at the path, filter or split they come from")
        if source is None:
            return cls(num_samples=count)
        chunk = whole_number("chunk_samples of a source", source.locality.chunk_samples, least=1)
        return cls(
            num_samples=count,
            locality=source.locality,
            chunk_bytes=source.locality.chunk_bytes or _decoded_bytes(source.fields, chunk),
            fingerprint=source.fingerprint,
            draw=source.draw_options,
        )


def choose_window(*, lanes: int, chunk_samples: int, chunk_bytes: int | None, num_chunks: int) -> int:
    """Return the default window in chunks: all lanes' windows together decode to at most `WINDOW_BYTES`.

    At least 1 and at most the number of chunks. 1 if a chunk has one sample, because there is nothing to mix.
    `DEFAULT_WINDOW` if the chunk size is unknown.
    """
    if chunk_samples == 1:
        return 1
    wanted = DEFAULT_WINDOW if chunk_bytes is None else WINDOW_BYTES // (lanes * chunk_bytes)
    return max(1, min(wanted, num_chunks))


def _decoded_bytes(fields: Mapping[str, FieldSpec], chunk_samples: int) -> int | None:
    """Return the decoded bytes of a chunk; None if unknown: no fields, or ragged ones."""
    if not fields or any(spec.ragged for spec in fields.values()):
        return None
    per_sample = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in fields.values())
    return max(1, per_sample * chunk_samples)


# Increased when the same inputs give another order; states of other versions are refused.
ALGORITHM = 1
PATTERN = re.compile(r"v(\d+)\.([a-z]+)\.L(\d+)\.W(\d+)\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The readable parts of a recipe, and a hash of all parts.

    Attributes:
        algorithm: version of the arithmetic.
        kind: "shuffle" or "sequential".
        lanes: number of lanes.
        window: chunks per window.
        digest: 16 hex digits.
    """

    algorithm: int
    kind: str
    lanes: int
    window: int
    digest: str

    def __str__(self) -> str:
        return f"v{self.algorithm}.{self.kind}.L{self.lanes}.W{self.window}.{self.digest}"

    @classmethod
    def of(cls, grid: Grid, *, kind: str, fingerprint: str | None) -> Recipe:
        """Return the recipe of an order over `grid`. `fingerprint` identifies the data; None if unknown."""
        parts: dict[str, JSON] = {
            "algorithm": ALGORITHM,
            "chunk_samples": grid.chunk_samples,
            "fingerprint": fingerprint,
            "kind": kind,
            "lanes": grid.lanes,
            "num_samples": grid.num_samples,
            "weights": None,
            "window": grid.window,
        }
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        return cls(algorithm=ALGORITHM, kind=kind, lanes=grid.lanes, window=grid.window, digest=digest)

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Return the parts of a recipe string.

        Raises:
            ConfigError: the string is not a recipe.
        """
        found = PATTERN.fullmatch(text)
        if not found:
            raise ConfigError(
                f"a recipe must look like v1.shuffle.L32.W16.<16 hex digits>, got {text!r}: damaged, or no recipe"
            )
        algorithm, kind, lanes, window, digest = found.groups()
        return cls(algorithm=int(algorithm), kind=kind, lanes=int(lanes), window=int(window), digest=digest)

    def differences(self, saved: Recipe) -> list[str]:
        """Return the differences between this recipe and a saved one, in words; empty if they are equal."""
        names = {"algorithm": "algorithm version", "kind": "kind", "lanes": "lanes", "window": "window"}
        found = [
            f"{name} (saved {getattr(saved, field)}, here {getattr(self, field)})"
            for field, name in names.items()
            if getattr(saved, field) != getattr(self, field)
        ]
        if not found and saved.digest != self.digest:
            found.append("the data (fingerprint, number of samples or samples per chunk)")
        return found
