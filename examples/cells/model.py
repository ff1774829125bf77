"""An autoencoder with a latent layer of two numbers, a classifier that sees nothing else, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

HIDDEN_SHARE = 0.5


class CellMap(nn.Module):
    """Genes to a point of a plane, the point back to genes, and to a kind of cell. No batch statistics.

    Args:
        num_genes: variables of a cell.
        num_types: kinds of cells.
        width: of the hidden layers.
    """

    def __init__(self, num_genes: int, num_types: int, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(num_genes, width), nn.GELU(), nn.Linear(width, 2))
        self.decoder = nn.Sequential(nn.Linear(2, width), nn.GELU(), nn.Linear(width, num_genes))
        self.classifier = nn.Sequential(nn.Linear(2, width), nn.GELU(), nn.Linear(width, num_types))

    def forward(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return points [B, 2], cells again [B, genes] and logits [B, types] of cells [B, genes]."""
        points = self.encoder(cells)
        return points, self.decoder(points), self.classifier(points)


def hide_genes(fields: dict[str, Any], keys: torch.Tensor) -> dict[str, Any]:
    """Add ``seen``: the cells with every other gene or so hidden. What is hidden follows from each cell's key.

    So the network learns from many genes at once, and the same at any world size and after a restart.
    """
    cells = fields["X"]
    chances = np.empty(cells.shape, np.float32)
    for chance, key in zip(chances, keys.tolist(), strict=True):
        chance[:] = np.random.default_rng(key % 2**64).random(len(chance), np.float32)
    left = torch.from_numpy(chances).to(cells.device) >= HIDDEN_SHARE
    return {**fields, "seen": cells * left / (1 - HIDDEN_SHARE)}


def train_step(model: nn.Module, batch: Any) -> Any:
    """Return the loss of each cell of this micro-batch, and whether it was recognised."""
    losses, right, _ = _judged(model, batch, "seen")
    return losses, {"accuracy": right}


class ValStep:
    """What is measured on the cells that were held out.

    Kinds are unequally frequent, so there are two accuracies: over cells, and over kinds, each of which counts the same
    however many cells it has. Both are (sum, weight), which adds up over ranks.

    Args:
        counts: int64[types], held-out cells of each kind.
        common: the kind that is most frequent among the cells for training: what a trivial answer would be.
    """

    def __init__(self, counts: torch.Tensor, common: int) -> None:
        self.shares = torch.where(counts > 0, 1 / counts.double(), 0)  # float32 sums would depend on the ranks
        self.common = common

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """Return the losses of a batch and its accuracies."""
        losses, right, types = _judged(model, batch, "X")
        shares = self.shares.to(types.device)[types]
        return losses, {
            "accuracy": right,
            "trivial_accuracy": types == self.common,
            "balanced_accuracy": ((right * shares).sum(), shares.sum()),
        }


def _judged(model: nn.Module, batch: Any, seen: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return losses, which cells are recognised, and their true kinds, each [B]."""
    dtype, types = next(model.parameters()).dtype, batch["cell_type"].long()
    _, again, logits = model(batch[seen].to(dtype))
    errors = (again - batch["X"].to(dtype)).square().mean(dim=1)
    losses = nn.functional.cross_entropy(logits, types, reduction="none") + errors
    return losses, logits.argmax(dim=1) == types, types
