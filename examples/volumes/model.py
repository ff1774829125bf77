"""A U-Net of one step down and up for volumes, its losses, and Dice as a number that adds up over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class SmallUNet(nn.Module):
    """One level down and up again, about 8,500 parameters, no batch statistics: any cut of a batch gives one gradient.

    Args:
        width: channels of the fine level; the coarse one has twice as many.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fine = nn.Conv3d(1, width, 3, padding=1)
        self.down = nn.Conv3d(width, 2 * width, 2, stride=2)
        self.coarse = nn.Conv3d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        """Return logits [B, z, y, x] of volumes [B, z, y, x]; even extents."""
        fine = nn.functional.relu(self.fine(volumes.unsqueeze(1)))
        coarse = nn.functional.relu(self.coarse(nn.functional.relu(self.down(fine))))
        return self.head(nn.functional.relu(fine + self.up(coarse))).squeeze(1)


def train_step(model: nn.Module, batch: Any) -> Any:
    """Return the mean cross-entropy of each crop of this micro-batch, and its Dice."""
    logits, head = _logits(model, batch), batch["head"]
    losses = nn.functional.binary_cross_entropy_with_logits(logits, head.to(logits.dtype), reduction="none")
    return losses.mean(dim=(1, 2, 3)), {"dice": dice(logits > 0, head > 0)}


def val_step(model: nn.Module, batch: Any) -> Any:
    """Return (sum of losses, number of voxels) of a batch of tiles, and its Dice, padding left out."""
    logits, head, real = _logits(model, batch), batch["head"], batch["image_mask"]
    losses = nn.functional.binary_cross_entropy_with_logits(logits, head.to(logits.dtype), reduction="none")
    found, true = real & (logits > 0), real & (head > 0)
    # What a model has to beat is calling every voxel head.
    return (losses[real].sum(), real.sum()), {"dice": dice(found, true), "trivial_dice": dice(real, true)}


def dice(found: torch.Tensor, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Dice as (sum, weight): twice the voxels that are both, and those of either. Both add up over ranks."""
    return 2 * (found & true).sum(), found.sum() + true.sum()


def _logits(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch["image"].to(next(model.parameters()).dtype))
