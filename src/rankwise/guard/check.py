"""What a check is, the data that all checks share; and the two checks that watch a step through hooks.

`Devices`: a rank's model, inputs, targets and loss weights are on one device, and each rank is on its own.
`Finite`: the module with the first non-finite value, in the forward or backward pass, and its row of the batch.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankwise.errors import GuardError
from rankwise.guard.findings import Finding, differing_ranks, listed

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from rankwise.world import World


@dataclass(slots=True, kw_only=True)
class Subject:
    """The training that the guard watches.

    Attributes:
        world: this rank's world.
        model: the model as the loop calls it: wrapped or not.
        loss: a loss module, if the user passed one.
        loader: the training data, if the user passed them.
        handles: hooks that are registered until the checked step has ended.
        ids: samples of the step, if known.
        trouble: the error of a hook, "" if none failed.
        traced: whether a hook was called while torch.compile compiled a function around the model.
        num_checked: number of checked steps so far.
        whole: whether to check every tensor, or a part that changes from one checked step to the next.
    """

    world: World
    model: nn.Module
    loss: Any = None
    loader: Any = None
    handles: list[Any] = field(default_factory=list)
    ids: Sequence[int] = ()
    trouble: str = ""
    traced: bool = False
    num_checked: int = 0
    whole: bool = True

    @property
    def wrapper(self) -> DistributedDataParallel | None:
        """Return the model's DistributedDataParallel, looked up each time: it may be created after the guard."""
        return replicas_in(self.model)

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile has compiled the model, a part of it, or a function that calls it."""
        marks, every = ("_orig_mod", "_compiled_call_impl"), self.model.modules()
        return self.traced or any(getattr(module, mark, None) is not None for module in every for mark in marks)

    def hook(self, register: Callable[..., Any], see: Callable[..., None], **options: Any) -> None:
        """Register a hook until the next check. It raises `GuardError` only: a bug of a check must not end training."""
        import torch

        def called(*given: Any) -> None:
            if torch.compiler.is_compiling():  # a compiled function calls the model: each new hook would recompile it
                self.traced = True
                return
            try:
                see(*given)
            except GuardError:
                raise
            except Exception as error:  # noqa: BLE001  (told to all ranks at the check)
                self.trouble = f"{type(error).__name__}: {error}"

        self.handles.append(register(called, **options))

    def disarm(self) -> None:
        """Remove all hooks."""
        while self.handles:
            self.handles.pop().remove()


@dataclass(slots=True, kw_only=True)
class CheckedStep:
    """All checks of one step, on all ranks at once.

    Attributes:
        world: the guard's own world.
        number: optimizer steps taken.
        found: findings of the checks so far.
    """

    world: World
    number: int = 0
    found: list[Finding] = field(default_factory=list)

    def gather(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks. Every rank must call it, so decide about calls by gathered data only."""
        return self.world.all_gather_object(mine) if self.world.world_size > 1 else [mine]

    def report(
        self, check: str, ranks: Sequence[int], where: str, *, wanted: str, came: str, mend: str, certain: bool = True
    ) -> None:
        """Add a finding."""
        finding = Finding(
            check=check,
            ranks=tuple(ranks),
            where=where,
            wanted=wanted,
            came=came,
            mend=mend,
            certain=certain,
            step=self.number,
        )
        self.found.append(finding)


class Check:
    """One check. `facts` is local and does not communicate; `compare` gets the facts of all ranks, equal on each.

    Args:
        subject: the training to check.
    """

    name: str

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def arm(self) -> None:
        """Register hooks before a checked step."""

    def facts(self) -> Any:
        """Return this rank's facts, small and picklable."""
        raise NotImplementedError

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report findings, from the facts by rank."""
        raise NotImplementedError

    def close(self) -> None:
        """Undo what the check has changed."""


def plain_name(name: str) -> str:
    """Return a parameter's or module's name without the prefixes of wrappers."""
    parts = name.split(".")
    while parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part != "_orig_mod")


def replicas_in(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that the model is or contains, or None."""
    from torch.nn.parallel import DistributedDataParallel

    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and mappings."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [tensor for value in tree.values() for tensor in tensors_of(value)]
    if isinstance(tree, list | tuple):
        return [tensor for value in tree for tensor in tensors_of(value)]
    return []


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's local part of a tensor, dense."""
    found = tensor.detach()
    found = found.to_local() if hasattr(found, "to_local") else found
    if found.is_sparse:
        found = found.coalesce().values()
    return found.resolve_conj().resolve_neg()  # type: ignore[no-any-return]


class Devices(Check):
    """One device for a rank's model, inputs, targets and loss weights, different for each rank; equal input dtypes."""

    name = "devices"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._dtypes: list[str] = []

    def arm(self) -> None:
        """Register hooks on the inputs of model and loss."""
        self._dtypes = []
        self._subject.hook(self._subject.model.register_forward_pre_hook, self._see, with_kwargs=True)
        if hasattr(self._subject.loss, "register_forward_pre_hook"):
            self._subject.hook(self._subject.loss.register_forward_pre_hook, self._record_loss)

    def _see(self, model: Any, values: Any, named: Any) -> None:
        if model.training and not self._dtypes:
            self._dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors_of((values, named))]

    def _record_loss(self, loss: Any, values: Any) -> None:
        """Raise before the loss fails, with the names of the tensors, which torch's error lacks."""
        given = [t for t in tensors_of(values) if t.ndim]
        if not given:
            return
        names = ("the prediction", "the target", "another argument")
        placed = [(names[min(n, 2)], t) for n, t in enumerate(given)]
        placed += [(f"the loss's {n}", t) for n, t in (*loss.named_parameters(), *loss.named_buffers()) if t.ndim]
        wrong = {name: t.device for name, t in placed if t.device != given[0].device}
        if wrong:
            finding = Finding(
                check=self.name,
                ranks=(self._subject.world.rank,),
                where=listed(wrong),
                wanted=f"{given[0].device}, the device of the prediction",
                came=", ".join(f"{name} is on {device}" for name, device in wrong.items()),
                mend="Move targets with the inputs, and loss weights with loss.to(device)",
                step=-1,
            )
            raise GuardError(str(finding), findings=(finding,))

    def facts(self) -> dict[str, Any]:
        """Return the devices of the model's tensors, the input dtypes, and the accelerator's id."""
        import torch

        places: dict[str, list[str]] = {}
        for name, parameter in self._subject.model.named_parameters():
            places.setdefault(str(parameter.device), []).append(f"parameter {plain_name(name)}")
        for name, buffer in self._subject.model.named_buffers():
            if buffer.ndim:  # counters may stay
                places.setdefault(str(buffer.device), []).append(f"buffer {plain_name(name)}")
        most = max(places, key=lambda place: len(places[place]), default="")
        odd = {place: listed(names) for place, names in places.items() if place != most}
        chip = None
        if most.startswith("cuda"):
            chip = f"{platform.node()} {torch.cuda.get_device_properties(most).uuid}"
        return {"most": most, "odd": odd, "dtypes": self._dtypes, "chip": chip}

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report tensors on another device, and ranks that share an accelerator or get inputs of another dtype."""
        for rank, fact in enumerate(facts):
            for place, names in fact["odd"].items():
                step.report(
                    self.name,
                    (rank,),
                    names,
                    wanted=f"{fact['most']}, the device of the rest of the model",
                    came=f"on {place}",
                    mend="Move the whole model by one model.to(device) before wrapping; register constants as buffers",
                    certain=False,
                )
        chips = [fact["chip"] for fact in facts]
        if shared := [rank for rank, chip in enumerate(chips) if chip is not None and chips.count(chip) > 1]:
            step.report(
                self.name,
                shared,
                "the accelerator",
                wanted="a separate one for each rank",
                came=f"they share {chips[shared[0]]}",
                mend="Call torch.cuda.set_device(local_rank) before anything else (bind() does)",
            )
        dtypes = [tuple(fact["dtypes"]) for fact in facts]
        if len(set(dtypes)) > 1 and () not in dtypes:
            step.report(
                self.name,
                differing_ranks(dtypes),
                "the model's inputs",
                wanted="the same dtypes on all ranks",
                came="; ".join(f"rank {rank} has {', '.join(names)}" for rank, names in enumerate(dtypes)),
                mend="Cast them in one place of the input pipeline",
                certain=False,
            )


class Finite(Check):
    """Records on the device whether values and gradients of the modules are finite; read only after a problem."""

    name = "finite"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._notes: list[tuple[str, str, torch.Tensor]] = []
        self._rows: list[torch.Tensor] = []

    def arm(self) -> None:
        """Register hooks on every module without children, the model's inputs and outputs, and the loss module."""
        self._notes, self._rows = [], []
        model, hook = self._subject.model, self._subject.hook
        hook(model.register_forward_pre_hook, self._record_inputs, with_kwargs=True)
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                hook(module.register_forward_hook, functools.partial(self._see, plain_name(name) or "the model"))
        hook(model.register_forward_hook, self._record_outputs)
        if hasattr(self._subject.loss, "register_forward_hook"):
            hook(self._subject.loss.register_forward_hook, functools.partial(self._see, "the loss"))

    def _record_inputs(self, model: Any, values: Any, named: Any) -> None:
        if model.training:
            self._note("the input", "holds", *tensors_of((values, named)))

    def _record_outputs(self, model: Any, _: Any, output: Any) -> None:
        """Note which rows of the model's output are not finite."""
        for tensor in tensors_of(output):
            if model.training and tensor.ndim and tensor.numel() and tensor.is_floating_point():
                self._rows.append(tensor.detach().reshape(len(tensor), -1).isfinite().all(1))
                break

    def _see(self, name: str, module: Any, _: Any, output: Any) -> None:
        if not module.training:
            return
        tensors = tensors_of(output)
        self._note(name, "returns", *tensors)
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_floating_point():
                # a tensor hook, because torch's module hooks forbid in-place operations
                tensor.register_hook(functools.partial(self._note, name, "gets a gradient of"))  # type: ignore[no-untyped-call]

    def _note(self, name: str, what: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            if tensor.is_floating_point() and not tensor.is_meta:
                self._notes.append((name, what, tensor.detach().isfinite().all()))

    def first(self) -> str:
        """Return a text about the step's first non-finite value; "" if there is none. Synchronises with the device."""
        last_good = "the loss"
        for name, what, good in self._notes:
            if not bool(good):
                told = f"{name} {what} values that are not finite"
                if what == "gets a gradient of":
                    told = f"in the backward after {last_good}, {told}"
                rows = [str(row) for row in self._bad_rows()]
                return told + (f" (rows {listed(rows)})" if rows else "")
            last_good = name if what == "gets a gradient of" else "the loss"
        return ""

    def _bad_rows(self) -> list[int]:
        rows: list[int] = []
        start = 0
        for good in self._rows:
            rows += [start + row for row, fine in enumerate(good.tolist()) if not fine]
            start += len(good)
        return rows

    def facts(self) -> dict[str, Any] | None:
        """Return this rank's non-finite gradients, their source and samples; None if all gradients are finite."""
        import torch

        named = [(n, p.grad) for n, p in self._subject.model.named_parameters() if p.grad is not None]
        good = [local(gradient).isfinite().all() for _, gradient in named]
        if not good or bool(torch.stack(good).all()):
            return None
        names = [plain_name(name) for (name, _), fine in zip(named, good, strict=True) if not bool(fine)]
        ids = self._subject.ids
        samples = [str(int(ids[row])) if row < len(ids) else f"row {row}" for row in self._bad_rows()]
        return {"gradients": listed(names), "first": self.first(), "samples": listed(samples)}

    def compare(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report the ranks whose own values are not finite; the gradient sum spreads them to all ranks."""
        met = {rank: fact for rank, fact in enumerate(facts) if fact is not None}
        if not met:
            return
        # a rank with a finite forward pass only got non-finite gradients from others
        guilty = [rank for rank, fact in met.items() if fact["first"]] or list(met)
        fact = met[guilty[0]]
        step.report(
            self.name,
            guilty,
            f"samples {fact['samples']}" if fact["samples"] else "the samples of the step",
            wanted="finite values and gradients",
            came=f"the gradients of {fact['gradients']} are not finite; on rank {guilty[0]} "
            f"{fact['first'] or 'every watched module returns finite values'}",
            mend="Check these samples and this module; lower the learning rate if nothing else is wrong",
        )
