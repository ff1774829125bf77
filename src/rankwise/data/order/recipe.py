"""What decides an order, as a readable string that ends in a hash: ``v1.shuffle.L32.W16.0f1e2d3c4b5a6978``.

Seed, batch size, remainder and world size are not in it: the seed stands in the state, the others may change in
mid-epoch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from rankwise.data.contract import JSON
from rankwise.data.order.lanes import Grid
from rankwise.errors import ConfigError

__all__ = ["ALGORITHM", "Recipe"]

# Raised when the same inputs come to give another order; a state of another version is refused.
ALGORITHM = 1
PATTERN = re.compile(r"v(\d+)\.([a-z]+)\.L(\d+)\.W(\d+)\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The readable parts of a recipe, and the hash of all parts.

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
        """Return the recipe of an order over `grid`; `fingerprint` is that of the data, None if unknown."""
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
                f"a recipe reads like v1.shuffle.L32.W16.<16 hex digits>, got {text!r}: not ours, or damaged"
            )
        algorithm, kind, lanes, window, digest = found.groups()
        return cls(algorithm=int(algorithm), kind=kind, lanes=int(lanes), window=int(window), digest=digest)

    def differences(self, saved: Recipe) -> list[str]:
        """Return what differs between this recipe and a saved one, in words; empty if they are equal."""
        names = {"algorithm": "algorithm version", "kind": "kind", "lanes": "lanes", "window": "window"}
        found = [
            f"{name} (saved {getattr(saved, field)}, here {getattr(self, field)})"
            for field, name in names.items()
            if getattr(saved, field) != getattr(self, field)
        ]
        if not found and saved.digest != self.digest:
            found.append("the data (fingerprint, number of samples or samples per chunk)")
        return found
