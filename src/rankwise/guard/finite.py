"""Find the module with the first non-finite value, in the forward or backward pass, and its row of the batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankwise.guard.check import Look, Subject
from rankwise.guard.findings import listed
from rankwise.guard.tensors import local, plain_name, tensors_of

if TYPE_CHECKING:
    import torch

__all__ = ["Finite"]


class Finite:
    """Records on the device whether values and gradients of the modules are finite; read only after a problem."""

    name = "finite"

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._notes: list[tuple[str, str, torch.Tensor]] = []
        self._rows: list[torch.Tensor] = []

    def arm(self) -> None:
        """Register hooks on every module without children, the model's inputs and outputs, and the loss module."""
        self._notes, self._rows = [], []
        model, place = self._subject.model, self._subject.place
        place(model.register_forward_pre_hook, self._see_inputs)
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                place(module.register_forward_hook, functools.partial(self._see, plain_name(name) or "the model"))
        place(model.register_forward_hook, self._see_outputs)
        if hasattr(self._subject.loss, "register_forward_hook"):
            place(self._subject.loss.register_forward_hook, functools.partial(self._see, "the loss"))

    def _see_inputs(self, model: Any, values: Any) -> None:
        if model.training:
            self._note("the input", "holds", *(t.detach() for t in tensors_of(values)))

    def _see_outputs(self, model: Any, _: Any, output: Any) -> None:
        """Note which rows of the model's output are not finite."""
        for tensor in tensors_of(output):
            if model.training and tensor.ndim and tensor.numel() and tensor.is_floating_point():
                self._rows.append(tensor.detach().reshape(len(tensor), -1).isfinite().all(1))
                break

    def _see(self, name: str, module: Any, _: Any, output: Any) -> None:
        if not module.training:
            return
        tensors = [t for t in tensors_of(output) if t.is_floating_point()]
        self._note(name, "returns", *(t.detach() for t in tensors))
        for tensor in tensors:
            if tensor.requires_grad:
                # a tensor hook, because torch's module hooks forbid in-place operations
                tensor.register_hook(lambda gradient: self._note(name, "gets a gradient of", gradient.detach()))  # type: ignore[no-untyped-call]

    def _note(self, name: str, what: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            if tensor.is_floating_point() and not tensor.is_meta:
                self._notes.append((name, what, tensor.isfinite().all()))

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

    def facts(self, look: Look) -> dict[str, Any] | None:  # noqa: ARG002  (one form for all checks)
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

    def judge(self, facts: Sequence[Any], look: Look) -> None:
        """Report the ranks whose own values are not finite; the gradient sum spreads them to all ranks."""
        met = {rank: fact for rank, fact in enumerate(facts) if fact is not None}
        if not met:
            return
        # a rank with a finite forward pass only got non-finite gradients from others
        guilty = [rank for rank, fact in met.items() if fact["first"]] or list(met)
        fact = met[guilty[0]]
        look.tell(
            self.name,
            guilty,
            f"samples {fact['samples']}" if fact["samples"] else "the samples of the step",
            wanted="finite values and gradients",
            came=f"the gradients of {fact['gradients']} are not finite; on rank {guilty[0]} "
            f"{fact['first'] or 'every watched module returns finite values'}",
            mend="Check these samples and this module; lower the learning rate if nothing else is wrong",
        )
