"""Check that a rank's model, inputs, targets and loss weights are on one device, and each rank on its own device."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from rankwise.errors import GuardError
from rankwise.guard.check import Look, Subject
from rankwise.guard.findings import listed, odd_ranks
from rankwise.guard.tensors import plain_name, tensors_of

__all__ = ["Devices"]


class Devices:
    """One device for a rank's model, inputs, targets and loss weights, different for each rank; equal input dtypes."""

    name = "devices"

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._dtypes: list[str] = []

    def arm(self) -> None:
        """Register hooks on the inputs of model and loss."""
        self._dtypes = []
        self._subject.place(self._subject.model.register_forward_pre_hook, self._see, with_kwargs=True)
        if hasattr(self._subject.loss, "register_forward_pre_hook"):
            self._subject.place(self._subject.loss.register_forward_pre_hook, self._see_loss)

    def _see(self, model: Any, values: Any, named: Any) -> None:
        if model.training and not self._dtypes:
            self._dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors_of((values, named))]

    def _see_loss(self, loss: Any, values: Any) -> None:
        """Raise before the loss fails, with the names of the tensors, which torch's error lacks."""
        given = [t for t in tensors_of(values) if t.ndim]
        if not given:
            return
        names = ("the prediction", "the target", "another argument")
        placed = [(names[min(n, 2)], t) for n, t in enumerate(given)]
        placed += [(f"the loss's {n}", t) for n, t in (*loss.named_parameters(), *loss.named_buffers()) if t.ndim]
        wrong = {name: t.device for name, t in placed if t.device != given[0].device}
        if wrong:
            look = Look.at(self._subject.world, step=-1)
            look.tell(
                self.name,
                (self._subject.world.rank,),
                listed(wrong),
                wanted=f"{given[0].device}, the device of the prediction",
                came=", ".join(f"{name} is on {device}" for name, device in wrong.items()),
                mend="Move targets with the inputs, and loss weights with loss.to(device)",
            )
            raise GuardError(str(look.found[0]), findings=tuple(look.found))

    def facts(self, look: Look) -> dict[str, Any]:  # noqa: ARG002  (one form for all checks)
        """Return the devices of the model's tensors, the input dtypes, and the accelerator's id."""
        import torch

        model = self._subject.model
        placed: list[tuple[str, torch.Tensor]]
        placed = [(f"parameter {plain_name(n)}", p) for n, p in model.named_parameters()]
        placed += [(f"buffer {plain_name(n)}", b) for n, b in model.named_buffers() if b.ndim]  # counters may stay
        places: dict[str, list[str]] = {}
        for name, tensor in placed:
            places.setdefault(str(tensor.device), []).append(name)
        most = max(places, key=lambda place: len(places[place]), default="")
        odd = {place: listed(names) for place, names in places.items() if place != most}
        chip = None
        if most.startswith("cuda"):
            chip = f"{platform.node()} {torch.cuda.get_device_properties(most).uuid}"
        return {"most": most, "odd": odd, "dtypes": self._dtypes, "chip": chip}

    def judge(self, facts: Sequence[Any], look: Look) -> None:
        """Report tensors on another device, and ranks that share an accelerator or get inputs of another dtype."""
        for rank, fact in enumerate(facts):
            for place, names in fact["odd"].items():
                look.tell(
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
            look.tell(
                self.name,
                shared,
                "the accelerator",
                wanted="a separate one for each rank",
                came=f"they share {chips[shared[0]]}",
                mend="Call torch.cuda.set_device(local_rank) before anything else (bind() does)",
            )
        dtypes = [tuple(fact["dtypes"]) for fact in facts]
        if len(set(dtypes)) > 1 and () not in dtypes:
            look.tell(
                self.name,
                odd_ranks(dtypes),
                "the model's inputs",
                wanted="the same dtypes on all ranks",
                came="; ".join(f"rank {rank} has {', '.join(names)}" for rank, names in enumerate(dtypes)),
                mend="Cast them in one place of the input pipeline",
                certain=False,
            )
