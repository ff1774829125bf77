"""The model of a stitcher: any function, or a torch module, which is put into evaluation mode and hashed by weights."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.contract.values import short_hash
from rankwise.errors import ConfigError

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def unwrapped(model: Any) -> Any:
    """Return the module inside a wrapper for data-parallel training, because ranks run unequal numbers of batches.

    Raises:
        ConfigError: it is not callable, or its weights are sharded over the ranks.
    """
    if not callable(model):
        raise ConfigError(f"model= must be a torch module or a function, got {type(model).__name__}")
    if not _is_module(model):
        return model
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if any(name.startswith("FSDP") or name == "FullyShardedDataParallel" for name in names):
        raise ConfigError(
            "the weights of the model are sharded over the ranks (FSDP), which run unequal numbers of batches here: "
            "gather them into a plain module on each rank first"
        )
    return model.module if type(model).__name__ in _WRAPPERS else model


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a torch module into evaluation mode without gradients; restore its mode afterwards."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    modules = list(model.modules()) if _is_module(model) else []
    trained = [module for module in modules if module.training]
    for module in trained:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in trained:
            module.training = True


def model_digest(model: Any) -> str:
    """Return a hash of a torch module's parameters and buffers, or of another function's source."""
    if not _is_module(model):
        return source_digest(model)
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        if hasattr(value, "detach"):
            plain = value.detach().cpu().contiguous()
            digest.update(f"{plain.dtype}{list(plain.shape)}".encode())
            digest.update(plain.flatten().view(sys.modules["torch"].uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()[:16]


def source_digest(function: Any) -> str:
    """Return a hash of a function's source, or its name if it has none; "" for None."""
    if function is None:
        return ""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = getattr(function, "__qualname__", type(function).__qualname__)
    return short_hash(text.encode())


def as_numpy(said: Any) -> NDArray:
    """Return a model's output as a NumPy array on the host; bfloat16 becomes float32."""
    if hasattr(said, "detach"):
        said = said.detach()
        if str(said.dtype) == "torch.bfloat16":
            said = said.float()
        said = said.cpu().numpy()
    values = np.asarray(said)
    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
