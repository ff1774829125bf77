"""Where the cells lie in the latent space of a model of torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from drawing import draw_cells

import rankwise
from rankwise.data.rows import OrderedLoader, RowSource


def write_picture(folder: Path, parts: Mapping[str, RowSource], model: torch.nn.Module) -> Path:
    """Write ``latent.png`` with the cells of all parts."""
    places = {name: place_cells(rows, model) for name, rows in parts.items()}
    return draw_cells(folder, places, parts["val"].categories["cell_type"])


def place_cells(rows: RowSource, model: torch.nn.Module) -> tuple[Any, Any]:
    """Return where cells lie, [cells, 2], and their kinds, [cells]; on one rank, without a trainer."""
    order = rankwise.Order(rows, batch_size=256, kind="sequential")
    weight = next(model.parameters())
    points, types = [], []
    with OrderedLoader(rows, order=order, world=rankwise.World.single()) as loader, torch.no_grad():
        for (batch,) in loader:
            points.append(model(batch["X"].to(weight))[0].cpu())
            # A batch's memory is filled again when the iteration moves on: a copy stays.
            types.append(batch["cell_type"].cpu().clone())
    return torch.cat(points).numpy(), torch.cat(types).numpy()
