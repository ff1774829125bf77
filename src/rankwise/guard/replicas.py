"""Check that the ranks have the same model: signature, gradients, parameters, buffers, and reductions per step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rankwise.errors import GuardError
from rankwise.guard.check import Check, CheckedStep, Subject, plain_name
from rankwise.guard.findings import differing_ranks, listed
from rankwise.guard.tensors import fingerprints, replicated, tensors_apart

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.world import World

_BUDGET = 1 << 23  # elements per check of a part: about 10 ms of one CPU core
_DTYPES = {"float": "torch.float32", "double": "torch.float64", "c10::BFloat16": "torch.bfloat16"}


def compare_signatures(model: nn.Module, step: CheckedStep) -> None:
    """Compare names, shapes and dtypes of parameters and buffers; every rank calls it."""
    apart = tensors_apart(model)
    kinds: list[tuple[str, str, torch.Tensor]]
    kinds = [(n, "trainable" if p.requires_grad else "frozen", p) for n, p in model.named_parameters()]
    kinds += [(n, "buffer", b) for n, b in model.named_buffers()]
    rows = [(plain_name(n), f"{k} {list(t.shape)} {str(t.dtype)[6:]}") for n, k, t in kinds if id(t) not in apart]
    digests = step.gather(hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest())
    if len(set(digests)) == 1:
        return
    tables = [dict(table) for table in step.gather(rows)]
    every = {name: None for table in tables for name in table}
    # in another order, wrong gradients would be added
    names = [n for n in every if len({t.get(n) for t in tables}) > 1] or ["the order of the parameters"]
    said = "; ".join(f"rank {rank} has {table.get(names[0], 'none')}" for rank, table in enumerate(tables))
    step.report(
        "signature",
        differing_ranks(digests),
        listed(names),
        wanted="the same parameters and buffers on all ranks",
        came=f"{names[0]}: {said}"[:600],
        mend="Build the model from the same configuration on every rank: DistributedDataParallel would wait for the "
        "others until its time-out",
    )


def check_signature(model: nn.Module, world: World) -> None:
    """Compare names, shapes and dtypes over ranks before a wrapper hangs on a difference. Collective.

    Raises:
        GuardError: they differ; raised on every rank, with the differences.
    """
    step = CheckedStep(world=world)
    if world.world_size > 1:
        compare_signatures(model, step)
    if step.found:
        raise GuardError(str(step.found[0]), findings=tuple(step.found))


class _Compared:
    """Fingerprints of some of the model's tensors, compared as one number; in detail only if that differs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._prints: list[int | None] = []

    def take(self, named: list[tuple[str, Any]]) -> str:
        """Compute the tensors' fingerprints and return one for all."""
        self.names = [name for name, _ in named]
        self._prints = fingerprints([tensor for _, tensor in named])
        return hashlib.blake2b(repr((self.names, self._prints)).encode(), digest_size=12).hexdigest()

    def differing(self, step: CheckedStep, more: Any = None) -> tuple[list[str], tuple[int, ...], list[Any]]:
        """Return the names that differ, the odd ranks, and the value of `more` on each rank. Collective."""
        answers = step.gather((self.names, self._prints, more))
        tables = [dict(zip(names, prints, strict=True)) for names, prints, _ in answers]
        every = {name: None for table in tables for name in table}
        names = [name for name in every if len({table.get(name, "none") for table in tables}) > 1]
        rows = [tuple(table.get(name, "none") for name in names) for table in tables]
        return names, differing_ranks(rows), [more for _, _, more in answers]


def _share(named: list[tuple[str, Any]], subject: Subject) -> list[tuple[str, Any]]:
    """Return the tensors to check: all, or as many as the budget allows, different ones at each checked step."""
    if subject.whole or sum(tensor.numel() for _, tensor in named) <= _BUDGET:
        return named
    start, size = (subject.num_checked * 7919) % len(named), 0
    chosen: list[tuple[str, Any]] = []
    for name, tensor in named[start:] + named[:start]:
        size += tensor.numel()
        if chosen and size > _BUDGET:
            break
        chosen.append((name, tensor))
    return chosen


class Gradients(Check):
    """Gradients must be equal on all ranks after the optimizer step; else the model silently does not synchronise."""

    name = "gradients"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._compared = _Compared()
        named = {plain_name(n): p for n, p in subject.model.named_parameters()}
        self._placed = {name: (p.dtype, p.device) for name, p in named.items()}
        self._frozen = {name for name, p in named.items() if not p.requires_grad}
        self._through = self._inside = self._synced = 0

    def arm(self) -> None:
        """Count the forward calls of the wrapper and of the module inside."""
        self._through = self._inside = self._synced = 0
        wrapper = self._subject.wrapper
        if wrapper is not None:
            self._subject.hook(wrapper.register_forward_pre_hook, self._pass_through)
            self._subject.hook(wrapper.module.register_forward_pre_hook, self._pass_inside)

    def _pass_through(self, wrapper: Any, _: Any) -> None:
        self._through += bool(wrapper.training)
        self._synced += bool(wrapper.training and wrapper.require_backward_grad_sync)

    def _pass_inside(self, module: Any, _: Any) -> None:
        self._inside += bool(module.training)

    def facts(self) -> str:
        """Return a fingerprint of the gradients of all trainable replicas."""
        model = self._subject.model
        named = replicated(model, ((n, p) for n, p in model.named_parameters() if p.requires_grad))
        return self._compared.take([(name, p.grad) for name, p in _share(list(named), self._subject)])

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report the parameters whose gradients differ, and the cause if known."""
        if len(set(facts)) == 1:
            return
        names, ranks, causes = self._compared.differing(step, next(self._causes(), None))
        cause, mend = next((told for told in causes if told is not None), _UNKNOWN)
        step.report(
            self.name,
            ranks,
            listed(names),
            wanted="equal gradients on all ranks when the optimizer steps",
            came=f"they differ in {len(names)} of {len(self._compared.names)} parameters: {cause}",
            mend=mend,
        )

    def _causes(self) -> Iterator[tuple[str, str]]:
        """Yield possible causes that this rank sees, with solutions; the most certain first."""
        wrapper = self._subject.wrapper
        if wrapper is None:
            what = "nothing in the model reduces gradients (no DistributedDataParallel)"
            yield what, "Pass the model through prepare(), or average the gradients before optimizer.step()"
            return
        now = {plain_name(n): p for n, p in self._subject.model.named_parameters()}
        known = {id(p) for p in getattr(wrapper, "_module_parameters", wrapper.module.parameters())}
        if late := [n for n, p in now.items() if p.requires_grad and (id(p) not in known or n in self._frozen)]:
            how = "unfrozen" if self._frozen.issuperset(late) else "added"
            yield f"{listed(late)} were {how} {_LATE}", _BEFORE
        moved = [n for n, p in now.items() if n in self._placed and (p.dtype, p.device) != self._placed[n]]
        noted = _dtypes_at_wrap(wrapper)
        if moved or (noted and noted != {str(p.dtype) for p in wrapper.module.parameters() if p.requires_grad}):
            what = f"the model was moved or cast after wrapping ({listed(moved) or 'its dtypes have changed'}), "
            what += "which drops the hooks of DistributedDataParallel"
            yield what, "Call .to(device), .double() etc. before wrapping (prepare() does)"
        if self._inside > self._through:
            what = "the forward bypassed the wrapper (model.module(x) instead of model(x))"
            yield what, "Call the wrapped model in training; model.module is for evaluation and saving"
        if self._through and not self._synced:
            what = "every forward of the step ran inside no_sync()"
            yield what, "Run the last micro-batch of a step, including its forward, outside no_sync()"
        unused = [] if wrapper.find_unused_parameters else [n for n, p in now.items() if _has_none(p)]
        if unused:
            yield f"the loss does not depend on {listed(unused)}, so other gradients wait for theirs", _FREEZE


_LATE = "after wrapping, so their gradients are not reduced"
_BEFORE = "Add and replace layers, and unfreeze parameters, before wrapping"
_FREEZE = (
    "Freeze them with requires_grad_(False) before wrapping, remove them, or wrap with find_unused_parameters=True"
)
_UNKNOWN = (
    "the model was moved after wrapping, or gradients were changed on some ranks after backward",
    "Call .to(device) before wrapping, and clip, scale or fill gradients in the same way on all ranks",
)


def _has_none(parameter: Any) -> bool:
    return parameter.requires_grad and parameter.grad is None


def _dtypes_at_wrap(wrapper: Any) -> set[str]:
    """Return the dtypes that DistributedDataParallel recorded of its parameters at its creation; empty if unknown."""
    try:
        noted = str(wrapper._get_ddp_logging_data()["dtypes"])  # noqa: SLF001  (torch has no public way)
    except (AttributeError, KeyError, RuntimeError):
        return set()
    found = [_DTYPES.get(part.strip(), "") for part in noted.split(",")]
    return set(found) if all(found) else set()


class Parameters(Check):
    """Parameters must be equal on all ranks after the step, even frozen ones; buffers as in the forward pass."""

    name = "parameters"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._compared, self._buffers = _Compared(), _Compared()
        self._in_forward: str | None = None

    def arm(self) -> None:
        """Register a hook for the buffers' fingerprint in the step's first forward, right after their broadcast."""
        self._in_forward = None
        wrapper = self._subject.wrapper
        inside = self._subject.model if wrapper is None else wrapper.module
        self._subject.hook(inside.register_forward_pre_hook, self._record_buffers)

    def _record_buffers(self, module: Any, _: Any) -> None:
        import torch

        if module.training and torch.is_grad_enabled() and self._in_forward is None:
            self._in_forward = self._buffers.take(list(replicated(module, module.named_buffers())))

    def facts(self) -> tuple[str, str | None]:
        """Return the fingerprints of parameters and buffers."""
        model = self._subject.model
        named = list(replicated(model, model.named_parameters()))
        return self._compared.take(_share(named, self._subject)), self._in_forward

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report parameters and buffers that differ; skip parameters whose gradients were reported."""
        follows = any(earlier.check == "gradients" for earlier in step.found)
        if len({of_parameters for of_parameters, _ in facts}) > 1 and not follows:
            names, ranks, _ = self._compared.differing(step)
            step.report(
                self.name,
                ranks,
                listed(names),
                wanted="equal parameters on all ranks",
                came=f"{len(names)} of {len(self._compared.names)} differ after the step",
                mend="Something changed them on some ranks only: weights loaded or edited after wrapping, an optimizer "
                "with other settings or state. Load and change them on every rank",
            )
        buffers = [of_buffers for _, of_buffers in facts]
        if None not in buffers and len(set(buffers)) > 1:
            names, ranks, _ = self._buffers.differing(step)
            step.report(
                self.name,
                ranks,
                f"buffers {listed(names)}",
                wanted="equal buffers on all ranks when a forward begins",
                came="they differ",
                mend="Without broadcast_buffers each rank has its own running statistics: evaluate and save those of "
                "rank 0 on purpose, or use SyncBatchNorm",
                certain=False,
            )


class Reductions(Check):
    """All-reduces per optimizer step: more than one means gradient accumulation without `no_sync`."""

    name = "reductions"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._flag = False
        self._synced = self._in_a_row = 0

    def arm(self) -> None:
        """Count synchronising backward passes at one parameter."""
        self._synced, self._flag = 0, False
        wrapper = self._subject.wrapper
        trained = [] if wrapper is None else [p for p in wrapper.module.parameters() if p.requires_grad]
        if wrapper is not None and trained:
            self._subject.hook(wrapper.register_forward_pre_hook, self._begin)
            # the last parameter belongs to the head, which every loss uses
            self._subject.hook(trained[-1].register_post_accumulate_grad_hook, self._end)

    def _begin(self, wrapper: Any, _: Any) -> None:
        if wrapper.training:
            self._flag = bool(wrapper.require_backward_grad_sync)

    def _end(self, _: Any) -> None:
        self._synced += self._flag

    def facts(self) -> int:
        """Return how many backward passes reduced gradients in this step."""
        return self._synced

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report more than one at two checks in a row: a gradient scaler may skip a step, which joins two steps."""
        several = max(facts) > 1 and self._subject.num_checked > 0  # the first step may include a warm-up
        self._in_a_row = self._in_a_row + 1 if several else 0
        if self._in_a_row == 2:
            step.report(
                self.name,
                [rank for rank, count in enumerate(facts) if count > 1],
                "the micro-batches of a step",
                wanted="one synchronised backward per optimizer step",
                came=f"{max(facts)} of them",
                mend="Run all micro-batches but the last inside no_sync(), forward and backward (Window does): the "
                "result is the same with a fraction of the communication",
                certain=False,
            )


class Unused(Check):
    """Finds trainable parameters without a gradient, or an unnecessary `find_unused_parameters`."""

    name = "unused"
    _CHECKS = 3

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._needless = 0
        self._frozen = {plain_name(n) for n, p in subject.model.named_parameters() if not p.requires_grad}

    def facts(self) -> tuple[bool, list[str]] | None:
        """Return whether the wrapper searches for unused parameters, and which got no gradient."""
        wrapper = self._subject.wrapper
        if wrapper is None or wrapper.static_graph:
            return None
        ignored = wrapper.parameters_to_ignore
        named = replicated(wrapper.module, wrapper.module.named_parameters())
        names = [n for n, p in named if _has_none(p) and n not in ignored]
        return bool(wrapper.find_unused_parameters), names

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report parameters that no rank used unexpectedly, or that the search finds none."""
        if any(fact is None for fact in facts):
            return
        names = [name for name in facts[0][1] if all(name in found for _, found in facts)]
        if facts[0][0]:
            self._needless = self._CHECKS + 1 if names else self._needless + 1
            if self._needless == self._CHECKS:
                step.report(
                    self.name,
                    range(step.world.world_size),
                    "find_unused_parameters=True",
                    wanted="a model with unused parameters",
                    came=f"every parameter had a gradient at {self._CHECKS} checked steps",
                    mend="Remove the flag unless later steps use other parameters: the search walks the graph in "
                    "every step",
                    certain=False,
                )
        elif names and not any(earlier.check == "gradients" for earlier in step.found):
            late = [name for name in names if name in self._frozen]  # unfrozen since the step's pass
            what = "the loss does not depend on them, and DistributedDataParallel fails at the next forward"
            step.report(
                self.name,
                range(step.world.world_size),
                listed(late or names),
                wanted="a gradient for every trainable parameter",
                came=f"they were unfrozen {_LATE}" if late else what,
                mend=_BEFORE if late else _FREEZE,
            )
