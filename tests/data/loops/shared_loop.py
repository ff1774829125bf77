"""What the loops of this folder share: the model, its loss, the notes of what was seen."""

import torch


def make_layer(kind):
    """One linear layer, the same in every loop."""
    layer = torch.nn.Linear(kind.num_inputs, 1, dtype=torch.float64)
    torch.nn.init.constant_(layer.weight, 1e-3)
    torch.nn.init.zeros_(layer.bias)
    return layer


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def summed_loss(model, inputs):
    """The sum over the samples of a micro-batch, which may be empty."""
    return (model(inputs)[:, 0] - 1).square().sum()


def note(kind, batch):
    """Epoch, number and value of each sample."""
    values = zip(batch.ids.tolist(), kind.values(batch), strict=True)
    return [(batch.share.step.epoch, number, value) for number, value in values]


def told(seen, layer, loader=None):
    return {"seen": seen, "weights": layer.weight[0].tolist(), "state": loader and loader.state_dict()}
