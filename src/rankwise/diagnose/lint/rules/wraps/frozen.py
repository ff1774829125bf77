"""RW207: parameters that are frozen or thawed after DDP has wrapped the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import names_in, training_loops
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Place, Scope, excludes
from rankwise.diagnose.lint.analysis.wrapped import known_wraps
from rankwise.diagnose.lint.record import Hit, rule
from rankwise.diagnose.lint.rules.wraps.after_wrap import bindings_behind, calls_behind

_HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@rule(
    "RW207", "requires-grad-after-wrap", "warning", "medium",
    message="requires_grad of {name} changes after the wrap: DDP keeps waiting for these gradients, or never reduces them",
    why="DDP takes the parameters that require gradients when it is built. Freezing later makes it wait for gradients that do not "
    "come; thawing later leaves them unsynchronised.",
    wrong=_HEAD + """
def prepare(net):
    model = DDP(net)
    for parameter in model.module.encoder.parameters():
        parameter.requires_grad = False
    return model
""",
    right=_HEAD + """
def prepare(net):
    for parameter in net.encoder.parameters():
        parameter.requires_grad = False
    return DDP(net)
""",
    ignore="find_unused_parameters=True is given and what was frozen stays so.",
)  # fmt: skip
def requires_grad_after_wrap(module: Module) -> Iterator[Hit]:
    """For p in model.parameters(): p.requires_grad = False, outside the training loop, in a file that does not only test."""
    if module.has_call("eval") and not module.has_call("backward", "step", "train", "fit"):
        return
    for wrap in known_wraps(module):
        for binding in bindings_behind(module, wrap):
            loops = binding.place.loops
            if not binding.text.endswith(".requires_grad") or not loops or not isinstance(loops[-1], ast.For):
                continue
            if _in_a_step(module, binding.place):
                continue
            used = {text_of(part) for part in ast.walk(loops[-1].iter) if isinstance(part, ast.Name | ast.Attribute)}
            if used & {wrap.text, f"{wrap.text}.module"} and not excludes(binding.place, wrap.place):
                yield Hit(binding.place.stmt, {"name": wrap.text})
        for call in calls_behind(module, wrap):
            given = [text_of(part) for part in call.node.args]
            target = module.local_function(call) if any(text.partition(".")[0] == wrap.text for text in given) else None
            if target is not None and _freezes(target) and not _in_a_step(module, call.place):
                yield Hit(call.node, {"name": wrap.text})
            if call.method != "requires_grad_" or _in_a_step(module, call.place):
                continue
            loop = call.place.loops[-1] if call.place.loops else None
            over = (
                {text_of(part) for part in ast.walk(loop.iter) if isinstance(part, ast.expr)}
                if isinstance(loop, ast.For)
                else set()
            )
            counted = (
                isinstance(loop, ast.For)
                and call.base in names_in(loop.target)
                and over & {wrap.text, f"{wrap.text}.module"}
            )
            straight = call.base.partition(".")[0] == wrap.text or call.base.startswith(f"{wrap.text}.")
            if counted or (straight and call.node.args):
                yield Hit(call.node, {"name": wrap.text})


def _freezes(scope: Scope) -> bool:
    """Whether a function sets requires_grad of the parameters that it gets."""
    walked = [ast.unparse(loop.iter) for loop in ast.walk(scope.node) if isinstance(loop, ast.For)]
    sets = any(text.endswith(".requires_grad") for text in scope.bindings)
    sets = sets or any(call.method == "requires_grad_" for call in scope.calls)
    return sets and any(f"{name}." in text and "parameters" in text for text in walked for name in scope.params)


def _in_a_step(module: Module, place: Place) -> bool:
    """Whether a place lies in a loop with a backward pass: two models in turn are frozen and thawed there on purpose."""
    if set(place.loops) & training_loops(module):
        return True
    scopes = {place.scope, *(call.place.scope for call in module.callers(place.scope))} if place.scope.owner else set()
    return any(call.place.scope in scopes for call in module.methods("backward"))
