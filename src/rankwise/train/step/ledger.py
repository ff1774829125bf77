"""Records of steps: stored quickly and evaluated together on demand, for their means, and whether they stay finite.

Between the operations of a step a line of Python costs several times as much as in a sequence, because the CPU has run
other code in between. So a step only stores a tuple, and everything that can wait is done for several steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rankwise.data.contract import Batch, OrderState, Share
from rankwise.guard.findings import listed
from rankwise.metrics.amounts import weighted_sum
from rankwise.metrics.host import is_tensor, to_host
from rankwise.train.models.sharding import local_part
from rankwise.train.step.output import on_host
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.guard import Guard

_MOST_IDS = 16


@dataclass(slots=True, kw_only=True)  # a frozen one takes three times as long to make, at every step
class StepReport:
    """Result of one step on one rank.

    Attributes:
        num_samples: real samples of the global batch that arrived.
        weight: sum of the weights over all ranks, by which the gradient was divided. If it is 0 (everything was
            masked or damaged), there is no mean: the step was skipped, and optimizer and scheduler did not change.
        loss: this rank's (sum of losses, sum of weights); the sum is a tensor without a graph. Empty shares give zeros.
        metrics: this rank's (sum, weight) by name.
        grad_norm: norm of the exact gradient before clipping, None if not requested. Equal on all ranks.
        resume: the order's state after this step; pass it to `BatchLoader.mark_done`.
        num_lost: real samples of the global batch that were damaged and skipped, over all ranks.
        overflowed: the scaled gradient was not finite on some rank: all ranks skipped the step, and the next one is
            scaled less.
    """

    num_samples: int
    weight: float
    loss: tuple[Any, Any]
    metrics: Mapping[str, tuple[Any, Any]]
    grad_norm: float | None
    resume: OrderState
    num_lost: int = 0
    overflowed: bool = False


# a step's loss, and its metrics by name; each as (sum, weight)
_Taken = tuple[tuple[Any, Any], Mapping[str, tuple[Any, Any]]]
# a step's shares, by micro-batch; its sum of losses; its gradient's norm, or a check of it; and the module that was not
# finite. Not its batches: their memory is refilled once no reference is left
_Record = tuple[Sequence[Share], Any, Any, str]


class Ledger:
    """Records steps, for the means of the log and of the epoch and for the check whether they were finite.

    Args:
        recent: means since the last log line.
        whole: means since the start of the epoch.
        model: its trainable parameters, and their gradients, are checked.
        guard: counts the optimizer's steps, and knows which module was not finite.
    """

    def __init__(self, recent: RunningMeans, whole: RunningMeans, model: nn.Module, guard: Guard) -> None:
        import torch

        self.recent, self.whole, self._guard = recent, whole, guard
        self._kept: list[tuple[StepReport, _Record]] = []  # until `settle`
        # until `first_problem`: the last step, and those that are not known to be finite
        self._last: _Record | None = None
        self._unchecked: list[_Record] = []
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._parameters: list[torch.Tensor] = [p for _, p in self._named]
        # gradients are on the device of their parameters; sparse ones are detected on use
        self._on_host = all(p.device.type == "cpu" and type(p.data) is torch.Tensor for p in self._parameters)
        self._found, self._one = torch.zeros(1), torch.ones(())
        self._seen = memoryview(self._found.numpy())  # type: ignore[arg-type]  # the same memory: read for a tenth of what `item` costs
        # the function that GradScaler uses: one pass; multiplying by 1 changes no bit
        self._look_at = torch._amp_foreach_non_finite_check_and_unscale_

    @property
    def pending(self) -> bool:
        """Whether steps were settled since the last `look`; equal on all ranks."""
        return self._last is not None

    def keep(self, report: StepReport, batches: Sequence[Batch]) -> None:
        """Store a step until `settle`; checks the gradients, which exist only until the next step, without waiting.

        Raises:
            GuardError: the guard found an error; on every rank.
        """
        if report.weight and not report.overflowed:  # the optimizer has stepped
            self._guard.step()
        gradient = report.grad_norm
        if gradient is None:
            gradient = self._checked([g for p in self._parameters if (g := p.grad) is not None])
        shares = (batches[0].share,) if len(batches) == 1 else [batch.share for batch in batches]
        self._kept.append((report, (shares, report.loss[0], gradient, self._guard.not_finite)))

    def settle(self) -> None:
        """Add up the losses and metrics of the stored steps, in order; forget those that are known to be finite."""
        kept, self._kept = self._kept, []
        taken = list[_Taken]()
        for report, (shares, loss, gradient, module) in kept:
            if report.overflowed:  # it was skipped: its numbers do not belong to the training
                taken.append(((0.0, 0.0), {}))
                continue
            total = loss
            if type(total) is not float:
                total = loss.item() if self._on_host else on_host(loss)
            self._last = (shares, total, gradient, module)
            if type(gradient) is not float or type(total) is not float or not math.isfinite(gradient + total):
                self._unchecked.append(self._last)
            taken.append(((total, report.loss[1]), report.metrics))
        self.recent.add(*taken)
        self.whole.add(*taken)

    def first_problem(self) -> NonFinite | None:
        """Return this rank's first problem in the steps settled since the last call; waits for the device."""
        from torch import no_grad

        unchecked, last = self._unchecked, self._last
        self._unchecked, self._last = [], None
        if last is None:
            return None
        for shares, loss, gradient, module in unchecked:
            if (problem := first_nonfinite(shares, {"loss": loss, "gradient": gradient}, module)) is not None:
                return problem
        # the gradient was finite but the update was not: a learning rate, or the optimizer's state, overflowed
        with no_grad():
            if math.isfinite(float(self._checked(self._parameters))):
                return None
        for name, parameter in self._named:
            if (problem := first_nonfinite(last[0], {name: _norm([parameter.detach()])}, last[3])) is not None:
                return problem
        return None

    def _checked(self, tensors: list[torch.Tensor]) -> Any:
        """Return a number that is finite exactly if all tensors are; it may still be on the device.

        For tensors in host memory it is 0.0, because a check is faster than their norm.
        """
        if self._on_host and tensors:
            try:
                self._look_at(tensors, self._found, self._one)
                if not self._seen[0]:
                    return 0.0
            except RuntimeError:  # sparse or complex ones
                self._on_host = False
            self._found.zero_()
        return _norm(tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
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


def first_nonfinite(shares: Sequence[Share], values: Mapping[str, Any], module: str = "") -> NonFinite | None:
    """Return the problem of a step, None if all values are finite; waits for the device.

    Args:
        shares: this rank's share of the step, by micro-batch.
        values: this rank's sum of losses as "loss", the gradient's norm as "gradient" (or another number that is finite
            if the gradient is), or a parameter's norm by its name.
        module: the module that produced a non-finite value, if examined.
    """
    for what, value in values.items():
        if not math.isfinite(number := float(value)):
            step, ids = shares[0].step, tuple(int(i) for share in shares for i in share.ids)
            return NonFinite(what=what, value=number, epoch=step.epoch, step=step.index, ids=ids, module=module)
    return None


def _norm(tensors: Iterable[torch.Tensor]) -> Any:
    """Return a norm that is finite exactly if all elements are (below 1e19), on the device."""
    import torch

    tensors = map(local_part, tensors)  # for sharded ones this rank's part: all ranks check, without waiting
    dense = [t._values() if t.is_sparse else t for t in tensors]  # noqa: SLF001  (no public name takes uncoalesced ones)
    # the 2-norm is the fastest; half precision, whose squares overflow, uses the largest magnitude
    order = math.inf if any(t.dtype == torch.float16 for t in dense) else 2.0
    return torch.nn.utils.get_total_norm([t for t in dense if t.numel()], order) if dense else 0.0


def step_place(shares: Sequence[Share]) -> str:
    """Return in words which step of which rank this is, and with which samples, for notes on errors."""
    step, ids = shares[0].step, listed([str(i) for share in shares for i in share.ids], most=_MOST_IDS)
    return f"step {step.index} of epoch {step.epoch} on rank {shares[0].rank}, with the samples {ids}"


def describe_problems(problems: Sequence[NonFinite | None], after: str, model: nn.Module) -> str | None:
    """Return a description of the problems of all ranks; None if there are none.

    Args:
        problems: by rank.
        after: what happened to the checkpoints, the end of the message.
        model: the model, whose parameters may be the cause.
    """
    import torch

    found = {rank: problem for rank, problem in enumerate(problems) if problem is not None}
    if not found:
        return None
    first = min(found.values(), key=lambda t: (t.epoch, t.step, t.what != "loss"))
    # a rank with a finite loss got the gradient of the others: it is not named if some rank has a bad loss
    same = {r: t for r, t in found.items() if (t.epoch, t.step, t.what) == (first.epoch, first.step, first.what)}
    where = f"at epoch {first.epoch}, step {first.step} of the epoch"
    held = {rank: listed(map(str, t.ids), most=_MOST_IDS) or "of a stand-in" for rank, t in same.items()}
    ranks = "; ".join(f"rank {rank} had the samples {ids}" for rank, ids in held.items())
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
    if any(p.dtype is torch.float16 and p.requires_grad for p in model.parameters()):
        mend = (
            "parameters are float16, in which small numbers of Adam become 0 and it divides by them: keep the model in "
            f'float32, and pass precision="fp16" or "bf16"; else {mend}'
        )
    began = "; ".join(f"on rank {rank} {t.module}" for rank, t in same.items() if t.module)
    return f"{cause}; {ranks}{'; ' * bool(began)}{began}: {mend}. {after}"


class RunningMeans:
    """Means by name since the last reduction, stored as a sum and a weight of this rank.

    Names may differ between ranks: a rank without samples has none.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}  # by "sum <name>" and "weight <name>", as in a checkpoint

    def add(self, *taken: _Taken) -> None:
        """Add the loss and the metrics of steps or batches, each as (sum, weight), in order. No synchronisation."""
        sums = self._sums
        for loss, metrics in taken:
            for name, (total, weight) in (("loss", loss), *metrics.items()):
                for key, number in ((f"sum {name}", total), (f"weight {name}", weight)):
                    amount = number if type(number) is float else _amount(number)
                    sums[key] = sums[key] + amount if key in sums else amount

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN if the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: set all sums to zero afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce like `reduce`, and return the notes of all ranks, by rank: small objects in the same collective."""
        mine = to_host(self._sums)
        gathered = [(mine, note)] if world.world_size == 1 else world.all_gather_object((mine, note))
        ranks, notes = zip(*gathered, strict=True)
        sums = _added(ranks)
        if reset:
            self._sums = {}
        means = dict[str, float]()
        for key in sorted(sums):
            kind, _, name = key.partition(" ")
            if kind == "sum":
                weight = sums[f"weight {name}"]
                means[name] = sums[key] / weight if weight else math.nan
        return means, list(notes)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        return _state_of(to_host(self._sums))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sums."""
        self._sums = _sums_in(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the combined sums of several ranks."""
        return _state_of(_added(map(_sums_in, states)))


def _amount(value: Any) -> Any:
    """Return what a value adds: a number, or a tensor on its device, of which all elements count."""
    value = on_host(value)
    if type(value) in (float, int):
        return value
    # a copy, as the user may change it; of one element without the operations of a weighted sum
    return value.clone() if is_tensor(value) and not value.ndim else weighted_sum(value, 1)[0]


def _added(ranks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for held in ranks:
        for key, number in held.items():
            sums[key] = sums.get(key, 0) + number
    return sums


def _state_of(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return sums in the form of a checkpoint: integers and floats apart, as `Counters` has them."""
    return {
        key: {"ints": 0, "floats": number} if type(number) is float else {"ints": number, "floats": None}
        for key, number in sums.items()
    }


def _sums_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of a checkpoint; in those of earlier versions a cell may have integers, floats and a rest."""
    return {
        key: cell["ints"] if cell["floats"] is None else cell["ints"] + cell["floats"] + cell.get("rest", 0.0)
        for key, cell in state.items()
    }
