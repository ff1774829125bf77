"""What a step function may return, said loudly."""

import numpy as np
import pytest
import torch

from rankwise import Order
from rankwise.errors import StepError
from rankwise.testing import ArrayLoader
from rankwise.train import ExactStep, read_output
from rankwise.world import World


def make_batch(remainder="split", samples=5):
    order = Order(samples, batch_size=8, remainder=remainder)
    loader = ArrayLoader({"x": np.arange(float(samples))}, order, seed=order.seed)
    return next(iter(loader))[0]


def with_graph(*shape):
    return torch.ones(shape, requires_grad=True) * 2.0


def test_the_three_forms_are_one():
    """Per-sample losses, their mean, and (sum, weight) mean the same on a batch without padding."""
    batch = make_batch()
    losses = with_graph(5)
    weights = (5, 5.0, np.int64(5), np.float32(5), torch.tensor(5.0))
    for answer in (losses, losses.mean(), *((losses.sum(), weight) for weight in weights), [losses.sum(), 5.0]):
        output = read_output(answer, batch)
        assert output.total.item() == pytest.approx(10.0)
        assert float(output.weight) == 5.0


def test_metrics_follow_any_form():
    """Per-sample values (bools too) and (sum, weight) pairs; detached."""
    batch = make_batch()
    metrics = {"hit": torch.tensor([True, False, True, True, False]), "pair": (with_graph(), 2), "value": with_graph(5)}
    output = read_output((with_graph(5), metrics), batch)
    assert (int(output.metrics["hit"][0]), output.metrics["hit"][1]) == (3, 5)
    assert float(output.metrics["pair"][0]) == 2.0
    assert not output.metrics["value"][0].requires_grad
    assert set(read_output((with_graph(), 3, metrics), batch).metrics) == {"hit", "pair", "value"}


def test_what_has_no_graph_adds_up_in_float64():
    """Metrics, and losses of an evaluation, are the same by any cut of the samples; pairs keep their digits, too."""
    values = torch.tensor([1e8, 1.0, 1.0, 1.0, 1.0])
    pair = torch.tensor(2**24 + 1), torch.tensor(2**24 + 1)
    found = read_output((with_graph(5), {"value": values, "pair": pair}), make_batch()).metrics
    assert (float(found["value"][0]), *map(float, found["pair"])) == (1e8 + 4, 2**24 + 1, 2**24 + 1)
    with torch.no_grad():
        assert float(read_output(values, make_batch()).total) == 1e8 + 4


def test_padding_weighs_nothing():
    """Of 8 samples 3 are padding: their losses are left out, even when they are NaN."""
    batch = make_batch("pad")
    assert (len(batch.ids), batch.count) == (8, 5)
    real = torch.as_tensor(batch.share.weights > 0)
    losses = torch.where(real, with_graph(8), float("nan"))
    output = read_output(losses, batch)
    assert (output.total.item(), output.weight) == (10.0, 5.0)


def test_a_scalar_is_refused_where_samples_are_padding():
    """A mean over padded samples cannot be turned into the sum over the real ones."""
    with pytest.raises(StepError, match=r"3 of the 8 samples are padding or missing.*reduction='none'"):
        read_output(with_graph(8).mean(), make_batch("pad"))


def test_a_weight_that_counts_padding_is_refused():
    """(sum, B) on a padded batch is the commonest mistake; the mend is in the message."""
    with pytest.raises(StepError, match=r"batch\.share\.weights"):
        read_output((with_graph(8).sum(), 8), make_batch("pad"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "it returned a NoneType"),
        (3.5, "it returned a float"),
        (torch.ones(5, 2, requires_grad=True), r"the shape \[5, 2\]"),
        (torch.ones(4, requires_grad=True), r"the shape \[5\].*returned the shape \[4\]"),
        ((torch.ones(5, requires_grad=True), 5), r"it returned a tuple of 2: \(a tensor of shape \[5\], a int \(5\)\)"),
        ((torch.ones((), requires_grad=True), "5"), "a number or a scalar tensor, got a str"),
        ((torch.ones((), requires_grad=True), torch.ones(2)), r"one number, got a tensor of shape \[2\]"),
        (torch.ones(5), "has no graph"),
        ((torch.ones(5, requires_grad=True), {"acc": 0.5}), "metric 'acc' must be a tensor of per-sample values"),
        ((torch.ones(5, requires_grad=True), {"loss": torch.ones(5)}), "a metric named 'loss'.*rename the metric"),
    ],
    ids=str,
)
def test_other_answers_are_refused_with_the_mend(answer, said):
    """The message says what was wanted and what came."""
    with pytest.raises(StepError, match=said):
        read_output(answer, make_batch())


def test_evaluation_needs_no_graph():
    """Under no_grad a loss without a graph is fine."""
    with torch.no_grad():
        assert read_output(torch.ones(5), make_batch()).weight == 5.0


def test_a_step_function_that_calls_backward_is_told_so():
    """Torch's text speaks of a graph that was freed; ours says who frees it."""
    model = torch.nn.Linear(2, 1)

    def greedy(model, batch):
        losses = model(batch["x"])[:, 0]
        losses.mean().backward()
        return losses

    loader = ArrayLoader({"x": np.ones((8, 2), "float32")}, Order(8, batch_size=4, seed=0), seed=0)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), greedy, world=World.single())
    with pytest.raises(StepError, match=r"does not call backward\(\) itself") as caught:
        step(next(iter(loader)))
    assert isinstance(caught.value.__cause__, RuntimeError)
