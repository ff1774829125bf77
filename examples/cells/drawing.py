"""A picture of the latent space: every cell a point, coloured by its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIZE, MARGIN, LEGEND = 640, 24, 240
# Ten colours that differ in hue or lightness, one for each kind, in the order of the table of kinds.
COLOURS = (
    (31, 119, 180),
    (174, 199, 232),
    (214, 39, 40),
    (255, 152, 150),
    (44, 160, 44),
    (152, 223, 138),
    (255, 127, 14),
    (148, 103, 189),
    (140, 86, 75),
    (127, 127, 127),
)


def draw_cells(folder: Path, places: Mapping[str, tuple[Any, Any]], kinds: Sequence[str]) -> Path:
    """Write ``latent.png``: cells for training as small discs, held-out ones as larger discs with a black rim.

    Args:
        folder: where it goes.
        places: of "train" and "val" the points [cells, 2] and the kinds [cells], as NumPy arrays.
        kinds: what they are called.
    """
    every = np.concatenate([points for points, _ in places.values()])
    low, high = every.min(axis=0), every.max(axis=0)
    image = Image.new("RGB", (SIZE + LEGEND, SIZE), "white")
    pen = ImageDraw.Draw(image)
    for name, (points, types) in places.items():
        shown = MARGIN + (points - low) / (high - low) * (SIZE - 2 * MARGIN)
        for (x, y), kind in zip(shown.tolist(), types.tolist(), strict=True):
            if name == "val":
                pen.circle((x, y), 5, fill=colour_of(kind), outline="black")
            else:
                pen.circle((x, y), 3, fill=colour_of(kind))
    for kind, text in enumerate(kinds):
        row = MARGIN + 24 * kind
        pen.circle((SIZE + 12, row + 6), 5, fill=colour_of(kind))
        pen.text((SIZE + 26, row), str(text), fill="black")
    path = folder / "latent.png"
    image.save(path)
    return path


def colour_of(kind: int) -> tuple[int, int, int]:
    """Return the colour of a kind of cell."""
    return COLOURS[kind % len(COLOURS)]
