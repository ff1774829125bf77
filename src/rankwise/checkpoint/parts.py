"""Parts of a checkpoint for objects that are not `Stateful`: modules, optimizers, the random state."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rankwise.checkpoint.format.pieces import mapping_like
from rankwise.data.contract import Stateful
from rankwise.errors import ConfigError

_COMPILED = "_orig_mod."  # the prefix that torch.compile adds to the names of a module


class Replicated:
    """A module, optimizer, scheduler or loader with equal state on all ranks: one copy is saved, the main rank's.

    Pass the bare module, not its DDP wrapper, whose names begin with ``module.``. Names of a compiled module, or of one
    with compiled parts, are saved as those of the plain one (without torch.compile's ``_orig_mod.``), and fit it.

    Args:
        obj: any object with `state_dict` and `load_state_dict`.
    """

    scope: Literal["replicated"] = "replicated"

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def state_dict(self) -> dict[str, Any]:
        """Return the object's state."""
        state: dict[str, Any] = self.obj.state_dict()
        if not _is_module(self.obj):
            return state
        named: dict[str, Any] = mapping_like(state, [(plain_name(name), value) for name, value in state.items()])
        return named

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Pass a state to the object."""
        if _is_module(self.obj):
            own = {plain_name(name): name for name in self.obj.state_dict()}
            plain = [(plain_name(name), value) for name, value in state.items()]
            state = mapping_like(state, [(own.get(name, name), value) for name, value in plain])
        self.obj.load_state_dict(state)


def plain_name(name: str) -> str:
    """Return a parameter's name without the prefixes of torch.compile."""
    return name.replace(_COMPILED, "")


def _is_module(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)


class RandomState:
    """The random generators of this process: Python, NumPy's global one, torch's on the CPU and on this rank's GPU.

    Those of torch only if it is in use; JAX keys are values, and belong to the state of the program.

    Belongs to a rank: at another world size it is not restored, and the caller reseeds (from seed, step and rank).
    """

    scope: Literal["rederived"] = "rederived"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all generators."""
        version, words, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
        state = {
            "python": {"version": version, "words": np.asarray(words, dtype=np.int64), "gauss": gauss},
            "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        }
        torch = sys.modules.get("torch")
        if torch is None:  # its generators were not used
            return state
        state["torch"] = torch.get_rng_state()
        # asking would initialise CUDA in a process that does not use it
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore all generators."""
        python, numpy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        legacy = (numpy["kind"], numpy["keys"], numpy["position"], numpy["has_gauss"], numpy["cached"])
        np.random.set_state(legacy)  # noqa: NPY002
        if "torch" not in state:
            return
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" not in state:
            return
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
        else:
            warnings.warn("the checkpoint holds the random state of a GPU, but there is no GPU: skipped", stacklevel=2)


class TreePart:
    """A plain tree as a part: saved unchanged, equal on all ranks; a dict is filled in place on restore."""

    scope: Literal["replicated"] = "replicated"

    def __init__(self, name: str, tree: Any) -> None:
        self._name = name
        self._tree = tree

    def state_dict(self) -> dict[str, Any]:
        """Return the tree, inside a new dict."""
        return {"tree": self._tree}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Fill the dict."""
        if not isinstance(self._tree, dict):
            raise ConfigError(
                f"the part {self._name!r} is a {type(self._tree).__name__}, which cannot be filled in place; pass a "
                "dict or read it with Checkpointer.read"
            )
        self._tree.clear()
        self._tree.update(state["tree"])


def as_part(name: str, value: Any) -> Stateful:
    """Return `value` as a part.

    Raises:
        ConfigError: it has a state but does not say how to treat it at another world size.
    """
    if isinstance(value, Stateful):
        if value.scope not in ("replicated", "sharded", "reduced", "rederived"):
            raise ConfigError(f"the part {name!r} has an unknown scope {value.scope!r}")
        return value
    if hasattr(value, "state_dict"):
        raise ConfigError(
            f"the part {name!r} ({type(value).__name__}) has a state but no scope; if it is equal on all ranks (a "
            f"module, an optimizer, a scheduler, a loader), pass Replicated({name})"
        )
    return TreePart(name, value)
