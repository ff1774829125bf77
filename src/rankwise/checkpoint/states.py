"""Model and optimizer states by parameter name: one form for every strategy, so that each loads any other's."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rankwise.checkpoint.format.pieces import Piece, Pieces, mapping_like
from rankwise.checkpoint.parts import Replicated, plain_name
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn


class ModelState:
    """A module as a part: plain, in DistributedDataParallel, compiled, or sharded by `fully_shard`.

    Each rank writes its shards of a sharded module. A state saved under one strategy and number of ranks can be
    restored under any other.

    Args:
        model: the module or its DistributedDataParallel.
    """

    by_pieces = True

    def __init__(self, model: nn.Module) -> None:
        self._part = Replicated(bare(model))

    @property
    def scope(self) -> Literal["replicated", "sharded"]:
        """Whether the ranks have shards ("sharded") or equal copies ("replicated")."""
        return "sharded" if any(map(is_dtensor, self._part.obj.parameters())) else "replicated"

    def state_dict(self) -> Any:
        """Return the state by name; for a sharded tensor the piece of this rank, if it has one to write."""
        state = self._part.state_dict()
        pieces = ((name, _piece(value) if is_dtensor(value) else value) for name, value in state.items())
        return mapping_like(state, [(name, value) for name, value in pieces if value is not None])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load whole tensors, or the joined results of `state_dict` from all ranks.

        Raises:
            ConfigError: a tensor has another shape.
        """
        own = self._part.state_dict()
        fitting = [(name, _fitted(value, own.get(plain_name(name)), name)) for name, value in state.items()]
        self._part.load_state_dict(mapping_like(state, fitting))


class OptimizerState:
    """An optimizer as a part, with its state by parameter name: plain, over shards, or ZeroRedundancyOptimizer.

    It fits another order of the parameters, another strategy and another number of ranks. A state saved as
    ``Replicated(optimizer)`` is restored by the order of the parameters.

    Args:
        optimizer: the optimizer.
        model: the module that it trains, or its DistributedDataParallel. Parameters of others are named by number.
    """

    by_pieces = True

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._optimizer = optimizer
        self._model = bare(model)
        # for ZeroRedundancyOptimizer: the optimizer of this rank's share of the parameters
        self._is_split = hasattr(optimizer, "consolidate_state_dict")
        self._inner: Any = getattr(optimizer, "optim", optimizer) if self._is_split else optimizer

    @property
    def scope(self) -> Literal["replicated", "sharded"]:
        """Whether the ranks have shards ("sharded") or equal copies ("replicated")."""
        sharded = self._is_split or any(is_dtensor(param) for param in _params(self._optimizer))
        return "sharded" if sharded else "replicated"

    def state_dict(self) -> dict[str, Any]:
        """Return the state by parameter name, and the groups with the names of their parameters."""
        names = self._names()
        saved = self._inner.state_dict()
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        by_number = {number: names[id(p)] for number, p in zip(numbers, _params(self._inner), strict=True)}
        state = {by_number.get(key, key): self._pieces(value) for key, value in saved["state"].items()}
        groups = saved["param_groups"] if not self._is_split else self._optimizer.param_groups
        named = [
            {**group, "params": [names[id(p)] for p in own["params"]]}
            for group, own in zip(groups, self._optimizer.param_groups, strict=True)
        ]
        return {"state": state, "param_groups": named}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of any strategy.

        Raises:
            ConfigError: the groups have other parameters, or a tensor has another shape.
        """
        names = self._names()
        groups, saved = self._optimizer.param_groups, _by_name(state, [names[id(p)] for p in _params(self._optimizer)])
        own = {id(param) for param in _params(self._inner)}
        _refuse_other_groups(saved["param_groups"], [[names[id(p)] for p in group["params"]] for group in groups])
        filled: dict[int, Any] = {}
        numbered: dict[int, Any] = {}
        number, out = 0, []
        for group, old in zip(groups, saved["param_groups"], strict=True):
            numbers = list(range(number, number + len(group["params"])))
            for param in group["params"]:
                name = names[id(param)]
                if name in saved["state"] and id(param) in own:
                    filled[number] = _fitted_state(saved["state"][name], param, name)
                    numbered[number] = param
                number += 1
            kept = {key: value for key, value in old.items() if key != "param_names"}
            out.append({**{key: group[key] for key in ("param_names",) if key in group}, **kept, "params": numbers})
        self._optimizer.load_state_dict({"state": filled, "param_groups": out})
        for number, param in numbered.items():
            _keep_scalars(self._inner.state[param], filled[number], param)

    def _pieces(self, values: Any) -> Any:
        """Return the state of one parameter in the form that this rank writes."""
        if not isinstance(values, Mapping):
            return values
        pieces: dict[str, Any] = {}
        for key, value in values.items():
            if is_dtensor(value):
                pieces[key] = _piece(value)
            elif self._is_split:
                shape = tuple(getattr(value, "shape", ()))
                pieces[key] = Piece(shape, (0,) * len(shape), value)
            else:
                pieces[key] = value
        return {key: value for key, value in pieces.items() if value is not None}

    def _names(self) -> dict[int, str]:
        """Return names by id; the first of a shared parameter. Of the current parameters, which may be sharded."""
        names = {id(p): f"#{number}" for number, p in enumerate(_params(self._optimizer))}
        found = [*self._model.state_dict(keep_vars=True).items(), *self._model.named_parameters()]
        return {**names, **{id(param): plain_name(name) for name, param in reversed(found)}}


def bare(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel, compiled or not."""
    from torch.nn.parallel import DistributedDataParallel

    while True:
        inside = getattr(model, "_orig_mod", model)
        if not isinstance(inside, DistributedDataParallel):
            return model
        model = inside.module


def _params(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def is_dtensor(value: Any) -> bool:
    """Whether it is a tensor of which each rank has a shard; does not import torch."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def _box(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return start and size of this rank's shard of a DTensor."""
    [chunk] = tensor.__create_chunk_list__()
    return tuple(chunk.offsets), tuple(chunk.sizes)


def _piece(tensor: Any) -> Piece | None:
    """Return what this rank writes of a DTensor; None for an empty shard, or a replica that another rank writes."""
    coordinate = tensor.device_mesh.get_coordinate()
    is_copy = coordinate is None or any(
        place.is_replicate() and at for place, at in zip(tensor.placements, coordinate, strict=True)
    )
    local = tensor.detach().to_local()
    return None if is_copy or not local.numel() else Piece(tuple(tensor.shape), _box(tensor)[0], local)


def _fitted(value: Any, like: Any, name: str) -> Any:
    """Return a saved value in the form of `like`: this rank's shard of it if that is sharded, else all of it."""
    if not is_dtensor(like) or not hasattr(value, "shape"):
        return value.whole() if isinstance(value, Pieces) else value
    from torch.distributed.tensor import DTensor

    pieces = value if isinstance(value, Pieces) else Pieces.of(value)
    if pieces.shape != tuple(like.shape):
        raise ConfigError(f"{name} has the shape {list(like.shape)} here, {list(pieces.shape)} in the checkpoint")
    local = pieces.box(*_box(like)).to(like.device)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _fitted_state(values: Any, param: Any, name: str) -> Any:
    """Return a parameter's saved state: values of its shape are sharded like it, others are whole on each rank."""
    if not isinstance(values, Mapping):
        return values
    shape = tuple(param.shape)
    same = {key: tuple(getattr(value, "shape", ())) == shape and bool(shape) for key, value in values.items()}
    odd = [key for key, value in values.items() if not same[key] and math.prod(getattr(value, "shape", ())) > 1]
    if odd and is_dtensor(param):
        raise ConfigError(
            f"the optimizer's state {odd[0]!r} of {name} has the shape {list(values[odd[0]].shape)}, the parameter "
            f"{list(shape)}: fully_shard needs states of the parameter's shape. Continue with strategy='ddp' or 'zero1'"
        )
    return {key: _fitted(value, param if same[key] else None, f"{name}[{key!r}]") for key, value in values.items()}


def _keep_scalars(state: Any, saved: Any, param: Any) -> None:
    """Give numbers in a parameter's state the dtype in which they were saved: torch casts them to the parameter's."""
    for key, value in saved.items() if isinstance(saved, Mapping) and param.ndim else ():
        loaded = state[key]
        if getattr(value, "ndim", None) == 0 and loaded.dtype != value.dtype:
            state[key] = value.to(loaded.device)


def _by_name(state: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    """Convert a plain optimizer's state from numbers to names, in the order of the parameters here."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if any(isinstance(number, str) for number in numbers):
        return state
    if len(numbers) != len(names):
        raise ConfigError(f"the optimizer has {len(names)} parameters here, {len(numbers)} in the checkpoint")
    by_number = dict(zip(numbers, names, strict=True))
    return {
        "state": {by_number.get(key, key): value for key, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [by_number[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }


def _refuse_other_groups(saved: list[Any], own: list[list[str]]) -> None:
    if len(saved) != len(own):
        raise ConfigError(f"the optimizer has {len(own)} parameter groups here, {len(saved)} in the checkpoint")
    for number, (group, names) in enumerate(zip(saved, own, strict=True)):
        odd = sorted({*group["params"]} ^ {*names})
        if odd:
            raise ConfigError(
                f"group {number} of the optimizer has other parameters here than in the checkpoint; they differ in "
                f"{', '.join(odd[:3])}{' and more' if len(odd) > 3 else ''}"
            )
