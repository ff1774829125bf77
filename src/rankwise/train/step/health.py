"""Checks whether losses, gradients and parameters stay finite: recorded at every step, checked at collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.data.contract import Share
from rankwise.train.models.sharding import local_part

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Health", "Trouble", "describe_trouble"]

_MOST_IDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The first non-finite value on one rank.

    Attributes:
        what: "loss", "gradient", or a parameter's name.
        value: nan, inf or -inf.
        epoch: epoch of the step.
        step: number of the step, in the epoch from 0.
        ids: this rank's samples of the step.
        module: where it first appeared on this rank, in words; "" if not examined.
    """

    what: str
    value: float
    epoch: int
    step: int
    ids: tuple[int, ...]
    module: str = ""


class Health:
    """Records of the steps since the last check, as numbers that may still be on the device.

    Args:
        model: its trainable parameters, and their gradients, are checked.

    Attributes:
        on_host: whether they are in host memory, as plain tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        import torch

        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._parameters: list[torch.Tensor] = [p for _, p in self._named]
        # gradients are on the device of their parameters; sparse ones are detected on use
        self.on_host = all(p.device.type == "cpu" and type(p.data) is torch.Tensor for p in self._parameters)
        # the last step, and those that are not known to be finite: shares, loss, gradient, module
        self._last: tuple[Sequence[Share], Any, Any, str] | None = None
        self._notes: list[tuple[Sequence[Share], Any, Any, str]] = []
        self._found, self._one = torch.zeros(1), torch.ones(())
        self._seen = memoryview(self._found.numpy())  # type: ignore[arg-type]  # the same memory: read for a tenth of what `item` costs
        # the function that GradScaler uses: one pass; multiplying by 1 changes no bit
        self._look_at = torch._amp_foreach_non_finite_check_and_unscale_

    @property
    def pending(self) -> bool:
        """Whether steps were taken since the last check; equal on all ranks."""
        return self._last is not None

    def note(self, shares: Sequence[Share], loss: Any, gradient: Any, module: str = "") -> None:
        """Record a completed step; never waits for the device.

        Args:
            shares: this rank's share of the step, by micro-batch.
            loss: this rank's sum of losses.
            gradient: the gradient's norm, or what `look_at_gradients` returned.
            module: the module that produced a non-finite value, if examined.
        """
        self._last = (shares, loss, gradient, module)
        # values known to be finite need no further check
        if type(gradient) is not float or type(loss) is not float or not math.isfinite(gradient + loss):
            self._notes.append(self._last)

    def look(self) -> Trouble | None:
        """Return this rank's first trouble since the last check; waits for the device, does not communicate."""
        from torch import no_grad

        notes, last = self._notes, self._last
        self._notes, self._last = [], None
        if last is None:
            return None
        for shares, loss, gradient, module in notes:
            for what, value in (("loss", loss), ("gradient", gradient)):
                if not math.isfinite(number := float(value)):
                    return _trouble(what, number, shares, module)
        # the gradient was finite but the update was not: a learning rate, or the optimizer's state, overflowed
        with no_grad():
            if math.isfinite(float(self._looked_at(self._parameters))):
                return None
        for name, parameter in self._named:
            if not math.isfinite(number := float(_norm([parameter.detach()]))):
                return _trouble(name, number, last[0], last[3])
        return None

    def look_at_gradients(self) -> Any:
        """Return a number that is finite exactly if all gradients are; it may still be on the device."""
        return self._looked_at([g for p in self._parameters if (g := p.grad) is not None])

    def _looked_at(self, tensors: list[torch.Tensor]) -> Any:
        """Return 0.0 for finite tensors in host memory, where a check is faster than a norm; else their norm."""
        if self.on_host and tensors:
            try:
                self._look_at(tensors, self._found, self._one)
                if not self._seen[0]:
                    return 0.0
            except RuntimeError:  # sparse or complex ones
                self.on_host = False
            self._found.zero_()
        return _norm(tensors)


def _trouble(what: str, value: float, shares: Sequence[Share], module: str) -> Trouble:
    step, ids = shares[0].step, tuple(int(i) for share in shares for i in share.ids)
    return Trouble(what=what, value=value, epoch=step.epoch, step=step.index, ids=ids, module=module)


def _norm(tensors: Iterable[torch.Tensor]) -> Any:
    """Return a norm that is finite exactly if all elements are (below 1e19), on the device."""
    import torch

    tensors = map(local_part, tensors)  # for sharded ones this rank's part: all ranks check, without waiting
    dense = [t._values() if t.is_sparse else t for t in tensors]  # noqa: SLF001  (no public name takes uncoalesced ones)
    # the 2-norm is the fastest; half precision, whose squares overflow, uses the largest magnitude
    order = math.inf if any(t.dtype == torch.float16 for t in dense) else 2.0
    return torch.nn.utils.get_total_norm([t for t in dense if t.numel()], order) if dense else 0.0


def describe_trouble(troubles: Sequence[Trouble | None], after: str) -> str | None:
    """Return a description of the troubles of all ranks; None if there are none.

    Args:
        troubles: by rank.
        after: what happened to the checkpoints, the end of the message.
    """
    found = {rank: trouble for rank, trouble in enumerate(troubles) if trouble is not None}
    if not found:
        return None
    first = min(found.values(), key=lambda t: (t.epoch, t.step, t.what != "loss"))
    # a rank with a finite loss got the gradient of the others: it is not named if some rank has a bad loss
    same = {r: t for r, t in found.items() if (t.epoch, t.step, t.what) == (first.epoch, first.step, first.what)}
    where = f"at epoch {first.epoch}, step {first.step} of the epoch"
    ranks = "; ".join(f"rank {rank} had the samples {_listed(t.ids)}" for rank, t in same.items())
    if first.what == "loss":
        who = " and ".join(f"{t.value} on rank {rank}" for rank, t in same.items())
        cause = f"the loss is {who} {where}"
        mend = "look at these samples, or lower the learning rate"
    elif first.what == "gradient":
        cause = f"the gradient is {first.value} on every rank {where}, although all losses were finite"
        mend = "an operation of the model has no finite derivative there (sqrt at 0, a masked log): look at the samples"
    else:
        cause = f"the parameter {first.what!r} is {first.value} after the update {where}; loss and gradient were finite"
        mend = "lower the learning rate, or check the optimizer's settings"
    began = "; ".join(f"on rank {rank} {t.module}" for rank, t in same.items() if t.module)
    return f"{cause}; {ranks}{'; ' * bool(began)}{began}: {mend}. {after}"


def _listed(ids: tuple[int, ...]) -> str:
    more = f", ... ({len(ids)} in all)" if len(ids) > _MOST_IDS else ""
    return ", ".join(str(i) for i in ids[:_MOST_IDS]) + more if ids else "of a stand-in"
