"""Sum, Mean, Max and Min against the obvious computation."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import CheckpointError, ConfigError
from rankwise.metrics import Max, Mean, Metric, Min, Sum

KINDS = [Sum, Mean, Max, Min]


def read(metric):
    return metric.read_state(metric.state_dict())


def exact(updates):
    """Elements and weights as fractions, one by one."""
    return [
        (Fraction(float(element)), Fraction(float(weight)))
        for value, weight in updates
        for element in np.asarray(value).reshape(-1)
    ]


@given(
    st.lists(
        st.tuples(
            st.lists(st.one_of(st.integers(-100, 100), st.floats(-1e3, 1e3)), max_size=5), st.sampled_from([0, 1, 2.5])
        ),
        max_size=6,
    ),
    st.sampled_from(["list", "array", "tensor"]),
)
def test_values_equal_exact_arithmetic(updates, form):
    """Any mix of elements and weights gives what fractions give, within rounding."""
    make = {"list": list, "array": np.array, "tensor": torch.tensor}[form]
    metrics = {kind: kind() for kind in KINDS}
    for value, weight in updates:
        for metric in metrics.values():
            metric.update(make(value), weight)
    # torch makes float32 of Python floats: the reference sees the same numbers
    pairs = exact([(make(value), weight) for value, weight in updates])
    total, weights = sum(v * w for v, w in pairs), sum(w for _, w in pairs)
    counted = [float(v) for v, w in pairs if w]
    assert math.isclose(read(metrics[Sum]), total, rel_tol=1e-12, abs_tol=1e-9)
    if not counted:
        assert all(math.isnan(read(metrics[kind])) for kind in (Mean, Max, Min))
    else:
        assert math.isclose(read(metrics[Mean]), total / weights, rel_tol=1e-12, abs_tol=1e-9)
        assert read(metrics[Max]) == max(counted)
        assert read(metrics[Min]) == min(counted)


@pytest.mark.parametrize("numbers", [[0.1] * 10**5, [1e16, *[1.0] * 10_000, -1e16], [3e-7 * i for i in range(10**5)]])
def test_rounding_does_not_add_up(numbers):
    """The sum of many floats is what `math.fsum` gives, also by way of a state, and of the states of several ranks."""
    metric, mean = Sum(), Mean()
    for number in numbers:
        metric.update(number)
        mean.update(number)
    assert math.isclose(read(metric), math.fsum(numbers), rel_tol=1e-15)
    assert math.isclose(read(mean), math.fsum(numbers) / len(numbers), rel_tol=1e-15)
    again = Sum()
    again.load_state_dict(json.loads(json.dumps(metric.state_dict())))
    assert (read(again), again.state_dict()) == (read(metric), metric.state_dict())
    three = metric.merge_states([metric.state_dict()] * 3)
    assert math.isclose(metric.read_state(three), math.fsum(numbers * 3), rel_tol=1e-15)


def test_states_without_the_rest_load():
    """A checkpoint of an earlier version holds the rounded sums only."""
    metric, mean = Sum(), Mean()
    metric.load_state_dict({"ints": 2, "floats": 0.5})
    mean.load_state_dict({"ints": 2, "floats": 0.5, "weight_ints": 5, "weight_floats": None})
    assert (read(metric), read(mean)) == (2.5, 0.5)


@pytest.mark.parametrize(("numbers", "want"), [([1e308, 1e308, 1.0], math.inf), ([math.inf, -math.inf], math.nan)])
def test_sums_that_leave_the_floats_stay_what_they_are(numbers, want):
    """Overflow is infinite, not NaN; infinities of both signs are NaN."""
    metric = Sum()
    for number in numbers:
        metric.update(number)
    assert read(metric) == want or (math.isnan(read(metric)) and math.isnan(want))


def test_a_weight_beyond_the_floats_is_a_weight():
    """Integers have no largest one."""
    metric = Mean()
    metric.update(3, weight=10**400)
    assert read(metric) == 3.0


@pytest.mark.parametrize("big", [2**53 + 1, 2**62 + 1, 2**63 - 1])
@pytest.mark.parametrize("make", [int, np.int64, lambda n: np.array([n, n, -n]), torch.tensor])
def test_integers_stay_exact(big, make):
    """Integers beyond float64 and even beyond int64 add up exactly, and come back as int."""
    metric, largest = Sum(), Max()
    for _ in range(3):
        metric.update(make(big))
        largest.update(make(big))
    assert read(metric) == 3 * big
    assert isinstance(read(metric), int)
    assert read(largest) == big
    assert isinstance(read(largest), int)


@pytest.mark.parametrize("weight", [[2**40, 2**40], [2**40, 0], [3, 2**62]])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_products_of_integers_stay_exact(weight, dtype):
    """Counts times weights leave int64 sooner than the counts do."""
    values = np.array([2**30, 2**30 + 1], dtype=dtype)
    metric = Sum()
    metric.update(values, weight=np.array(weight))
    assert read(metric) == sum(int(v) * w for v, w in zip(values, weight, strict=True))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize(("kind", "wanted"), [(Sum, 8.0), (Mean, 2.0), (Max, 2.0)])
def test_one_number_may_have_several_weights(kind, wanted, make):
    """It counts with each of them."""
    metric = kind()
    metric.update(2.0, weight=make([1.0, 0.0, 3.0]))
    assert read(metric) == wanted


def test_bools_count():
    """Hits of a batch are counted as integers; their mean is the accuracy."""
    hits, accuracy = Sum(), Mean()
    for batch in ([True, False, True], [], [True]):
        hits.update(torch.tensor(batch, dtype=torch.bool))
        accuracy.update(torch.tensor(batch, dtype=torch.bool))
    assert (read(hits), read(accuracy)) == (3, 0.75)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_nan_is_seen_and_weight_0_is_not_there(kind, make):
    """A NaN shows in the value, unless its weight is 0: then it is padding, whatever it holds."""
    seen, hidden = kind(), kind()
    seen.update(make([1.0, math.nan, 3.0]))
    hidden.update(make([1.0, math.nan, 3.0]), make([1, 0, 1]))
    assert math.isnan(read(seen))
    assert not math.isnan(read(hidden))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [(math.nan, 1.0, 2), (1.0, math.nan, 2), (2, 1.0, math.nan)])
def test_a_nan_stays_whatever_follows(kind, order):
    """One NaN among single numbers makes the value NaN, wherever it came, in merging too."""
    metric, other = kind(), kind()
    for value in order:
        metric.update(value)
    other.update(5.0)
    assert math.isnan(read(metric))
    for states in ([metric, other], [other, metric]):
        assert math.isnan(metric.read_state(metric.merge_states([part.state_dict() for part in states])))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_a_weight_of_fewer_axes_belongs_to_the_samples(make):
    """Weights of shape [B] weigh the samples of a value [B, C], also where B equals C."""
    metric = Mean()
    metric.update(make([[1.0, 2.0], [3.0, 4.0]]), make([0.0, 1.0]))
    assert read(metric) == 3.5


def test_a_mean_loss_counts_with_its_samples():
    """The mean of batch means weighted by the batch sizes is the mean over the samples."""
    metric = Mean()
    metric.update(torch.tensor(2.0), weight=3)
    metric.update(5.0, weight=torch.ones(1))
    assert read(metric) == (2.0 * 3 + 5.0) / 4


def test_half_precision_is_summed_in_double():
    """bfloat16 and float16 inputs do not accumulate in their own precision."""
    for dtype in (torch.bfloat16, torch.float16):
        metric = Sum()
        metric.update(torch.ones(5000, dtype=dtype))
        assert read(metric) == 5000.0


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_not_kept(kind):
    """A loss with a graph behind it is accepted and its graph is let go."""
    metric = kind()
    metric.update(torch.ones(3, requires_grad=True) * 2)
    assert read(metric) in (6.0, 2.0)


@pytest.mark.parametrize(
    ("value", "weight", "message"),
    [
        ("abc", 1, "array of numbers"),
        (torch.ones(2, dtype=torch.complex64), 1, "complex64"),
        (np.ones(3), np.ones(2), r"weight of shape \(2,\) does not fit its value of shape \(3,\)"),
        (np.ones(3), np.ones((3, 3)), "does not fit"),
        (1.0, -1, "at least 0, got -1"),
        (1.0, math.nan, "finite"),
        (np.ones(2), np.array([1.0, -2.0]), "at least 0"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_accumulated_is_refused(kind, value, weight, message):
    """The message says what came."""
    with pytest.raises(ConfigError, match=message):
        kind().update(value, weight)


@pytest.mark.parametrize("kind", KINDS)
def test_state_continues(kind):
    """A restored metric goes on as if it had never stopped; a state of another metric is refused."""
    whole, first, second = kind(), kind(), kind()
    for metric in (whole, first):
        metric.update(torch.arange(5.0), 2)
    second.load_state_dict(first.state_dict())
    for metric in (whole, second):
        metric.update([7, 8])
    assert read(second) == read(whole)
    with pytest.raises(CheckpointError, match="belongs to another metric"):
        first.load_state_dict({"odd": 1})


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_fit_the_protocol_and_merge_from_nothing(kind):
    """Merging no partial gives the empty one."""
    metric = kind()
    assert isinstance(metric, Metric)
    assert metric.merge_states([]) == kind().state_dict()


class _NoWaiting(torch.utils._python_dispatch.TorchDispatchMode):
    """Stands for a device: any read of a tensor's value would make a real device wait."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(function), "an update has read a value from the device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [2, 0.5, "tensor"])
def test_updates_do_not_wait_for_a_device(kind, weight):
    """On the meta device, where no value can be read, all updates work and leave 0-d tensors there."""
    metric = kind()
    with _NoWaiting():
        for value in (torch.ones(4, 2, device="meta"), torch.ones(3, 1, dtype=torch.int32, device="meta")):
            metric.update(value, torch.ones(len(value), device="meta") if weight == "tensor" else weight)
            metric.update(1.5)
    cells = [cell for cell in metric.partial().values() if isinstance(cell, torch.Tensor)]
    assert cells
    assert all(cell.device.type == "meta" and cell.ndim == 0 for cell in cells)
