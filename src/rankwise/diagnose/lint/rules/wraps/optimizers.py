"""RW220: optimizers that are older than the shards of their model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import is_const
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.analysis.wrapped import SHARDS
from rankwise.diagnose.lint.record import Hit, Rule

_OF_MODELS = ("parameters", "named_parameters")


@Rule(
    "RW220", "optimizer-before-shard", "error", "medium",
    message="this optimizer holds the parameters that {name} had before it was sharded: it updates tensors that nothing uses",
    why="FSDP and fully_shard replace the parameters of a model. An optimizer that was made before keeps the old ones, and "
    "training changes nothing, or only parts.",
    wrong="""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def prepare(net):
    optimizer = torch.optim.AdamW(net.parameters())
    model = FSDP(net)
    return model, optimizer
""",
    right="""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def prepare(net):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer
""",
    ignore="use_orig_params=True is given by options that this file does not show.",
)  # fmt: skip
def optimizer_before_shard(module: Module) -> Iterator[Hit]:
    """AdamW(net.parameters()) stands before FSDP(net), or before fully_shard(net), in one function."""
    for shard, inner in _shards(module):
        name = text_of(inner)
        for call in shard.place.scope.calls:
            if position(call.node) >= position(shard.node):
                continue
            maker = _optimizer(call) if call.method in _OF_MODELS and call.base == name else None
            if maker is not None and not any(_again(found, maker) for found in shard.place.scope.calls):
                yield Hit(maker.node, {"name": name})


def _shards(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the calls that shard a model, and the model; also those of functions of this file that do it to a parameter."""
    for shard in module.named(*SHARDS):
        inner, scope = shard.argument("module", 0), shard.place.scope
        original = shard.argument("use_orig_params")
        if inner is None or shard.is_open or (original is not None and not is_const(original, False)):
            continue
        yield shard, inner
        if scope.is_function and text_of(inner) in scope.params and not shard.place.branches:
            for call, part in module.given(scope, text_of(inner)):
                if isinstance(part, ast.Name | ast.Attribute):
                    yield call, part


def _optimizer(call: Call) -> Call | None:
    """Return the call of an optimizer that the parameters are given to."""
    for found in call.place.scope.calls:
        known = found.name.startswith("torch.optim.") or re.search(r"optim|Adam|SGD|Lion|Adafactor", found.method)
        inside = found.place.stmt is call.place.stmt and found is not call and call.node in ast.walk(found.node)
        if known and inside and "scheduler" not in found.text and found.method not in {"append", "extend"}:
            return found
    return None


def _again(call: Call, maker: Call) -> bool:
    """Whether the optimizer is made again further down."""
    return call.text == maker.text and position(call.node) > position(maker.node)
