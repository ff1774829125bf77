"""The values that a step function may return, and their meaning.

A step function is called as ``step_fn(model, batch)`` for one micro-batch of one rank and returns one of

- ``losses``: a tensor of per-sample losses, shape [B]: the gradient is their exact mean over the global batch;
- ``(total, weight)``: the *sum* of weighted losses (scalar tensor) and the sum of their weights (number or scalar
  tensor): samples, tokens, pixels, or any other unit of the mean;
- ``loss``: a bare scalar, taken as the mean over this rank's samples. Refused if samples have weights.

Each form may be followed by a dictionary of metrics: name -> per-sample values, or ``(sum, weight)``. The name "loss"
is reserved for the losses themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from rankwise.data.contract import Batch
from rankwise.errors import StepError

if TYPE_CHECKING:
    import torch

_FORMS = (
    "a step function must return per-sample losses of shape [B], (sum of losses, sum of weights), or a scalar mean "
    "over its samples, each optionally followed by a dictionary of metrics"
)
_FLOAT_BYTES = 4


@dataclass(slots=True, kw_only=True)  # a frozen one takes three times as long to make, at every step
class StepOutput:
    """A step function's return value in normalised form.

    Attributes:
        total: scalar tensor with a graph, the weighted sum of the losses of this micro-batch.
        weight: sum of the weights: a number, or a scalar tensor without a graph.
        counted: True if `weight` is the number of this batch's real samples, so that the order gives the global sum.
        metrics: name -> (sum, weight), both without a graph.
    """

    total: torch.Tensor
    weight: float | torch.Tensor
    counted: bool
    metrics: Mapping[str, tuple[Any, Any]]


def read_output(answer: Any, batch: Batch) -> StepOutput:
    """Return a step function's return value in normalised form.

    Raises:
        StepError: the value has an unknown form, or is ambiguous for this batch.
    """
    metrics: Mapping[str, Any] = {}
    if isinstance(answer, tuple | list) and answer and isinstance(answer[-1], Mapping):
        rest, metrics = tuple(answer[:-1]), answer[-1]
        answer = rest[0] if len(rest) == 1 else rest
    counted = not isinstance(answer, tuple | list)
    total, weight = _read_tensor(answer, batch) if counted else _read_pair(answer, batch)
    if not total.requires_grad:
        import torch

        if torch.is_grad_enabled():
            raise StepError(
                "the loss that the step function returned has no graph, so no gradient can follow: compute it from the "
                "model's output without .detach(), .item() or torch.no_grad(), and do not freeze all parameters"
            )
    return StepOutput(
        total=total,
        weight=weight,
        counted=counted,
        metrics={k: _read_metric(k, v, batch) for k, v in metrics.items()} if metrics else metrics,
    )


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of at least float32: half precision is too coarse to sum or average in."""
    return tensor.float() if tensor.itemsize < _FLOAT_BYTES else tensor


def on_host(value: Any) -> Any:
    """Return a scalar as it adds up without loss: in host memory as a number, on a device in float64 if it has any."""
    if type(value) in (float, int) or not hasattr(value, "is_cpu"):
        return value
    if value.is_cpu:
        return value.item() if value.ndim == 0 else value
    return value if value.device.type == "mps" else value.double()


def _read_pair(answer: Any, batch: Batch) -> tuple[torch.Tensor, float | torch.Tensor]:
    import torch

    if len(answer) != 2 or not isinstance(answer[0], torch.Tensor) or answer[0].ndim != 0:
        raise StepError(f"{_FORMS}; it returned {_describe(answer)}")
    total, weight = answer
    if isinstance(weight, torch.Tensor):
        if weight.numel() != 1:
            raise StepError(
                f"the weight of (sum, weight) must be one number, got a tensor of shape {list(weight.shape)}"
            )
        weight = weight.detach().reshape(())
    elif not isinstance(weight, Real) or isinstance(weight, bool):
        raise StepError(f"the weight of (sum, weight) must be a number or a scalar tensor, got {_describe(weight)}")
    elif not isinstance(weight, int | float):
        weight = float(weight)  # one of NumPy's
    padding = len(batch.ids) - batch.count
    if padding > 0 and isinstance(weight, int | float) and weight == len(batch.ids):
        raise StepError(
            f"this batch has {padding} padding samples of weight 0, but the step function's weight counts them "
            f"({weight} = all samples): multiply the losses by batch.share.weights and return their sum as the weight"
        )
    return total, weight if type(weight) is float else on_host(weight)


def _read_tensor(answer: Any, batch: Batch) -> tuple[torch.Tensor, float]:
    import torch

    num_samples = len(batch.ids)
    if not isinstance(answer, torch.Tensor):
        raise StepError(f"{_FORMS}; it returned {_describe(answer)}")
    if answer.ndim == 0:
        if batch.count != num_samples:
            raise StepError(
                f"the step function returned a scalar mean, but {num_samples - batch.count} of the {num_samples} "
                "samples are padding or missing, so the mean cannot be turned into a sum: return per-sample losses "
                "(reduction='none'), or (sum of losses, sum of weights)"
            )
        return widened(answer) * num_samples, float(num_samples)
    if answer.shape != (num_samples,):
        raise StepError(
            f"per-sample losses must have the shape [{num_samples}], one for each sample of the micro-batch; the step "
            f"function returned the shape {list(answer.shape)}: reduce the other axes, or return (sum, weight)"
        )
    return _weighted_sum(answer, batch), float(batch.count)


def _weighted_sum(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the sum over samples without padding (selected, as NaN x 0 is NaN). Half precision is summed as float.

    Values without a graph (metrics, losses of an evaluation) are summed in float64, so that the cut does not matter.
    """
    if values.is_floating_point():
        if not values.requires_grad and values.device.type != "mps":
            values = values.double()
        values = widened(values)
    weights = batch.share.weights
    if weights is None or len(weights) != len(values):
        return values.sum()
    import torch

    return values[torch.as_tensor(weights > 0, device=values.device)].sum()


def _read_metric(name: str, value: Any, batch: Batch) -> tuple[Any, Any]:
    import torch

    if name == "loss":
        raise StepError(
            f"the step function returned a metric named {name!r}: the loss is already reduced and logged under that "
            "name. Leave it out, or rename the metric"
        )
    if isinstance(value, tuple | list) and len(value) == 2:
        return tuple(on_host(v.detach() if isinstance(v, torch.Tensor) else v) for v in value)
    if isinstance(value, torch.Tensor) and value.shape == (len(batch.ids),):
        values = value.detach()
        values = values if values.is_floating_point() else values.to(torch.int64)
        return _weighted_sum(values, batch), batch.count
    raise StepError(
        f"metric {name!r} must be a tensor of per-sample values, shape [{len(batch.ids)}], or a pair (sum, weight); "
        f"got {_describe(value)}: a mean of this rank alone cannot be combined with those of the other ranks"
    )


def _describe(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: ({', '.join(_describe(v) for v in value)})"
    return f"a {type(value).__name__}" + ("" if value is None else f" ({value!r:.60})")
