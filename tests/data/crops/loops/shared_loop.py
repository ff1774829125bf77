"""What the loops of this folder share: the model, the crops, the notes of what was seen."""

import torch

import rankwise
from rankwise.data.crops import CropIndex, Pipeline

BATCH_SIZE = 7


def make_layer():
    """One linear layer over the voxels of a crop, the same in every loop."""
    layer = torch.nn.Linear(4 * 8 * 8, 1, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 1e-3)
    torch.nn.init.zeros_(layer.bias)
    return layer


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def make_pipeline(volume):
    """Tiles of a volume, seven in a step; its rank and world are those of the process group that is there."""
    index = CropIndex(volume, shape=(4, 8, 8))
    return Pipeline(index, order=rankwise.Order(index, batch_size=BATCH_SIZE), micro_batch=3)


def summed_loss(model, batch):
    """The sum over the crops of a micro-batch, which may be empty."""
    crops = batch["image"].flatten(1).to(torch.float64) / 24_000  # to 1
    return (model(crops)[:, 0] - 1).square().sum()


def note(batch):
    """Epoch, number and first voxel of each crop."""
    firsts = batch["image"][:, 0, 0, 0].tolist()
    return [(batch.share.step.epoch, i, v) for i, v in zip(batch.ids.tolist(), firsts, strict=True)]


def told(seen, layer, pipeline):
    return {"seen": seen, "weights": layer.weight[0].tolist(), "state": pipeline.state_dict()}
