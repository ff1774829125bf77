"""Batch statistics over the samples of all ranks: N ranks normalise like one rank with the whole micro-batch.

On GPUs this uses torch's own layer; on CPUs, which it does not support, an equivalent layer. In both a rank can take
part without being counted, for the stand-in of a rank without samples.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable

from rankwise.errors import ConfigError, StepError
from rankwise.train.models.wrapped_models import group_of

if TYPE_CHECKING:
    from rankwise.world import World

_LOG = logging.getLogger("rankwise.train")
_Norm: Any = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  (the only common base)


def join_batch_norms(model: nn.Module, world: World, *, wish: bool | Literal["auto"]) -> nn.Module:
    """Replace the model's batch norms by layers with statistics over all ranks, and return the model.

    Parameters, buffers and their names do not change. On one rank nothing is replaced.

    Args:
        model: changed in place, unless it is such a layer itself.
        world: this rank's world.
        wish: True requires such layers; "auto" replaces and logs them; False replaces only torch's, and on a CPU only.

    Raises:
        ConfigError: the value of `wish` is invalid, there is no such layer, or one has no parameters yet.
    """
    if not isinstance(wish, bool) and wish != "auto":
        raise ConfigError(f"sync_batchnorm must be True, False or 'auto', got {wish!r}")
    every = model.named_modules(remove_duplicate=False)  # a layer may be in several places
    named = {name: m for name, m in every if isinstance(m, _Norm) and not hasattr(m, "joins_ranks")}
    if world.world_size == 1:
        return model
    if wish is True and not named:
        raise ConfigError("sync_batchnorm=True, but the model has no layer with batch statistics: leave it out")
    found = {
        name: norm
        for name, norm in named.items()
        if (norm.process_group is None and world.device.type != "cuda" if isinstance(norm, nn.SyncBatchNorm) else wish)
    }
    made: dict[int, nn.Module] = {}
    for name, norm in found.items():
        joined = made.get(id(norm)) or made.setdefault(id(norm), _joined(norm, world))
        parent, _, own = name.rpartition(".")
        if not name:
            return joined
        setattr(model.get_submodule(parent), own, joined)
    if wish is not True and found and world.is_main:
        _LOG.info("%d layers compute their batch statistics over all ranks", len(made))
    return model


def _joined(norm: Any, world: World) -> nn.Module:
    kind: Any = _DeviceNorm if world.device.type == "cuda" else _HostNorm
    made = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    for name, value in (*norm.named_parameters(), *norm.named_buffers()):
        setattr(made, name, value)  # the same objects, because an optimizer may reference them
    made.training = norm.training
    if isinstance(made, _DeviceNorm):
        made.process_group = group_of(world)
    else:
        made.ranks = _Ranks(group_of(world))
    return cast("nn.Module", made)


class _Ranks:
    """A process group that is kept when a model is copied, and dropped when it is pickled."""

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: Any) -> _Ranks:
        return self

    def __reduce__(self) -> Any:
        return (_Ranks, ())

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the vectors of all ranks as rows, by rank."""
        rows = mine.new_empty(dist.get_world_size(self.group), len(mine))
        dist.all_gather(list(rows.unbind()), mine, group=self.group)
        return rows


class _DeviceNorm(nn.SyncBatchNorm):
    """torch's own layer; a rank may take part without being counted."""

    joins_ranks = True
    counts = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts or not self.training:
            return super().forward(x)
        nobody = super().forward(x[:0])  # takes part in the collectives, forward and backward, with a count of 0
        batch = self.running_mean is None
        own = nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=batch, eps=self.eps
        )
        return own + nobody.sum()


class _HostNorm(_Norm):  # type: ignore[misc]
    """Batch norm over the samples of all ranks, on any device."""

    joins_ranks = True
    counts = True
    ranks: _Ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() < 2:
            raise ValueError(f"batch norm needs samples of channels, at least 2 axes, got the shape {list(x.shape)}")
        if not self.training:
            batch = self.running_mean is None
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=batch, eps=self.eps
            )
        y, mean, var, count = _Normalised.apply(x, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        self._track(mean, var, float(count))
        return cast("torch.Tensor", y)

    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
        if count == 1:
            raise StepError(
                "one value per channel over all ranks has no variance: use a larger batch, or a norm without batch "
                "statistics (GroupNorm)"
            )
        if self.running_mean is None or not count:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            part = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), part)
            self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), part)


class _Normalised(torch.autograd.Function):
    """Normalises by mean and variance over all ranks; gradients flow through both, on all ranks.

    Each rank contributes its count, mean and squared deviations, which are combined by Chan's formula: sums of squares
    would lose the variance of values far from zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, norm: _HostNorm) -> Any:
        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        axes, channels = [0, *range(2, x.dim())], x.shape[1]
        num = wide.numel() // channels if norm.counts else 0
        own = wide.mean(axes) if num else wide.new_zeros(channels)
        apart = (wide - _spread(own, x)).square().sum(axes) if num else own
        rows = norm.ranks.gather(torch.cat([own, apart, own.new_tensor([float(num)])]))
        means, num_each = rows[:, :channels], rows[:, -1:]
        count = num_each.sum()
        mean = (means * num_each).sum(0) / count.clamp(min=1)
        squares = rows[:, channels:-1] + num_each * (means - mean).square()
        var = squares.sum(0) / count.clamp(min=1)
        inverse = (var + norm.eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.ranks, ctx.counts, ctx.has_bias = norm.ranks, norm.counts, bias is not None
        y = (wide - _spread(mean, x)) * _spread(inverse if weight is None else inverse * weight, x)
        y = y if bias is None else y + _spread(bias, x)
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        x, weight, mean, inverse, count = ctx.saved_tensors
        axes = [0, *range(2, x.dim())]
        dy = grad.to(mean.dtype)
        normal = (x.to(mean.dtype) - _spread(mean, x)) * _spread(inverse, x)
        by_bias, by_weight = dy.sum(axes), (dy * normal).sum(axes)
        sums = torch.cat([by_bias, by_weight])
        dist.all_reduce(sums, group=ctx.ranks.group)
        if ctx.counts:  # uncounted samples affected neither mean nor variance
            first, second = (sums / count).chunk(2)
            dy = dy - _spread(first, x) - normal * _spread(second, x)
        dx = dy * _spread(inverse if weight is None else inverse * weight, x)
        given = None if weight is None else by_weight.to(weight.dtype)
        return dx.to(x.dtype), given, by_bias.to(mean.dtype) if ctx.has_bias else None, None


def _spread(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return one value per channel, in a shape that broadcasts with `x`."""
    return values.reshape(1, -1, *([1] * (x.dim() - 2)))
