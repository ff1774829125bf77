"""The accumulation window, for loops of one's own."""

import pytest
import torch
from torch import nn

from rankwise.errors import StepError
from rankwise.train import Window
from rankwise.world import World


def test_one_rank_is_the_plain_mean():
    """Two micro-batches of unequal size give the gradient of their common mean."""
    model = nn.Linear(3, 1, bias=False).double()
    data = torch.arange(15.0, dtype=torch.float64).reshape(5, 3)
    model(data).mean().backward()
    wanted = model.weight.grad.clone()
    model.zero_grad()
    window = Window(model, World.single(), num_micro=2)
    for part in (data[:4], data[4:]):
        with window.micro_batch():
            window.backward(model(part).sum(), len(part))
    assert window.finish() == 5.0
    torch.testing.assert_close(model.weight.grad, wanted, rtol=0, atol=1e-14)


def test_too_many_and_too_few_micro_batches_are_refused():
    """A window that another rank would still wait for does not pass silently."""
    model = nn.Linear(1, 1)
    window = Window(model, World.single(), num_micro=1)
    with pytest.raises(StepError, match="expects 1 micro-batches, got 0 backward passes"):
        window.finish()
    with window.micro_batch():
        window.backward(model(torch.ones(1, 1)).sum(), 1)
    with pytest.raises(StepError, match="opened for 1 micro-batches, got one more"):
        window.micro_batch()


@pytest.mark.parametrize(
    "weights", [[2**24 + 1, 2**24 + 1], [torch.tensor(2**24 + 1)] * 2, torch.tensor([256.0, 3.0]).bfloat16()]
)
def test_weights_add_up_exactly(weights):
    """Voxels of a volume are more than float32 counts, and a mask's sum may come in half precision."""
    model = nn.Linear(1, 1)
    window = Window(model, World.single(), num_micro=2)
    for weight in weights:
        with window.micro_batch():
            window.backward(model(torch.ones(1, 1)).sum(), weight)
    assert window.finish() == sum(int(weight) for weight in weights)
