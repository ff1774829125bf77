"""A picture of the latent space: every cell a point, coloured by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image, ImageDraw

import rankwise
from rankwise.data.rows import OrderedLoader, RowSource

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


def write_picture(folder: Path, parts: Mapping[str, RowSource], model: torch.nn.Module) -> Path:
    """Write ``latent.png``: cells for training as small discs, held-out ones as larger discs with a black rim."""
    places = {name: place_cells(rows, model) for name, rows in parts.items()}
    every = torch.cat([points for points, _ in places.values()])
    low, high = every.amin(dim=0), every.amax(dim=0)
    image = Image.new("RGB", (SIZE + LEGEND, SIZE), "white")
    pen = ImageDraw.Draw(image)
    for name, (points, types) in places.items():
        shown = MARGIN + (points - low) / (high - low) * (SIZE - 2 * MARGIN)
        for (x, y), kind in zip(shown.tolist(), types.tolist(), strict=True):
            if name == "val":
                pen.circle((x, y), 5, fill=colour_of(kind), outline="black")
            else:
                pen.circle((x, y), 3, fill=colour_of(kind))
    for kind, text in enumerate(parts["val"].categories["cell_type"]):
        row = MARGIN + 24 * kind
        pen.circle((SIZE + 12, row + 6), 5, fill=colour_of(kind))
        pen.text((SIZE + 26, row), str(text), fill="black")
    path = folder / "latent.png"
    image.save(path)
    return path


def place_cells(rows: RowSource, model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where cells lie, [cells, 2], and their kinds, [cells]; on one rank, without a trainer."""
    order = rankwise.Order(rows, batch_size=256, kind="sequential")
    weight = next(model.parameters())
    points, types = [], []
    with OrderedLoader(rows, order=order, world=rankwise.World.single()) as loader, torch.no_grad():
        for (batch,) in loader:
            points.append(model(batch["X"].to(weight))[0].cpu())
            # A batch's memory is filled again when the iteration moves on: a copy stays.
            types.append(batch["cell_type"].cpu().clone())
    return torch.cat(points), torch.cat(types)


def colour_of(kind: int) -> tuple[int, int, int]:
    """Return the colour of a kind of cell."""
    return COLOURS[kind % len(COLOURS)]
