"""RW206: forward passes that go past the wrap."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from rankwise.diagnose.lint.analysis.facts import NO_TRAINING, backward_passes, has_framework, training_steps
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, last, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Place
from rankwise.diagnose.lint.analysis.wrapped import Wrap, known_wraps, prepared, sees
from rankwise.diagnose.lint.record import HEAD, Hit, Rule


@Rule(
    "RW206", "module-forward", "error", "medium",
    message="the forward pass goes through {name}.module: backward does not add up its gradients",
    why="DDP prepares the reduction of gradients in its own forward. A pass through .module skips it, and each rank steps by "
    "its own gradient.",
    wrong=HEAD + """
def train(net, loader, optimizer):
    model = DDP(net)
    for x in loader:
        model.module(x).sum().backward()
        optimizer.step()
""",
    right=HEAD + """
def train(net, loader, optimizer):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
""",
    ignore="the gradients are reduced by hand.",
)  # fmt: skip
def module_forward(module: Module) -> Iterator[Hit]:
    """model.module(x), model.module.encode(x), or the same by another name, whose result reaches backward.

    Or the model that was wrapped, by the name that it had before.
    """
    by_hand = any("grad" in module.text(call.node) for call in module.methods("all_reduce"))
    accelerated = module.imports.uses("accelerate")
    if by_hand or module.has_call("average_gradients") or (has_framework(module) and not accelerated):
        return
    known = known_wraps(module)
    wrapped = {wrap.text for wrap in known} | (prepared(module) if accelerated else set())
    inner = {f"{name}.module": name for name in wrapped}
    taken: set[Binding] = set()
    for binding in module.bindings if wrapped else ():
        text = _taken_out(module, binding.value, binding.place)
        if text in inner and binding.text not in wrapped:
            inner[binding.text] = inner[text]
            taken.add(binding)
    bare = {wrap.inner: wrap for wrap in known if wrap.inner not in {"", "self", wrap.text} and not wrap.place.branches}
    seen: set[tuple[str, ast.stmt]] = set()
    for call in module.calls if inner else ():
        # what an expression takes out, unwrap(model)(x), and a method of it
        node = call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node.func
        root = _taken_out(module, node, call.place) if isinstance(node, ast.Call | ast.IfExp) else ""
        name = inner.get(call.text) or inner.get(call.base) or _of_part(inner, call) or inner.get(root)
        if name is None and call.text in bare and sees(module, replace(bare[call.text], text=call.text), call):
            name = bare[call.text].text
        body = None if name is None else _body_of_step(module, call)
        shown = call.node
        if name is not None and body is None:
            outer = _step_of_helper(module, call)
            call, body = (call, None) if outer is None else (outer, _body_of_step(module, outer))  # noqa: PLW2901
        if name is None or body is None or _is_another(call, taken):
            continue
        quiet = any(re.search("no_grad|inference", text) for text in call.place.contexts)
        frozen = _evaluates(module, call, {name, *(text for text, of in inner.items() if of == name)})
        harmless = quiet or frozen or (name, body) in seen or _is_prepared(module, call, body, name)
        if not harmless and _reaches_backward(module, call, body):
            seen.add((name, body))
            yield Hit(shown, {"name": name})
    for wrap in bare.values():
        yield from _given_past(module, wrap)


def _is_prepared(module: Module, call: Call, body: ast.stmt, name: str) -> bool:
    """Whether the wrapped model has a forward pass in the same step, before backward: then DDP is prepared."""
    inside = training_steps(module)[body]
    backs = (each for each in backward_passes(module) if each in inside)
    back = next((each for each in backs if position(each.node) > position(call.node)), None)
    return any(
        found.text == name
        and found in inside
        and (not name.endswith("[]") or ast.unparse(call.node).startswith(ast.unparse(found.node.func)))
        and (back is None or position(found.node) < position(back.node) or position(found.node) < position(call.node))
        and not (found.place.branches[len(call.place.branches) :] and position(found.node) > position(call.node))
        for found in module.methods(last(name))
    )


def _given_past(module: Module, wrap: Wrap) -> Iterator[Hit]:
    """Yield the calls that give the plain model to a function of this file that trains it; nothing runs the wrapped one."""
    used = re.findall(rf"\b{re.escape(wrap.text)}\b(?!\.(?:parameters|train|eval|state_dict)\b)", module.source)
    before = replace(wrap, text=wrap.inner)
    for call in module.calls if len(used) == 1 else ():
        target = module.local_function(call)
        for name in target.params if target is not None and sees(module, before, call) else ():
            given = [part for one, part in module.given(target, name) if one is call and part is not None]  # type: ignore[arg-type]
            inside = [each for each in target.calls if each.text == name] if wrap.inner in map(text_of, given) else []  # type: ignore[union-attr]
            steps = ((each, _body_of_step(module, each)) for each in inside)
            if any(body is not None and _reaches_backward(module, each, body) for each, body in steps):
                yield Hit(call.node, {"name": wrap.text})


def _is_another(call: Call, taken: set[Binding]) -> bool:
    """Whether the name that is called means something else in this function than what was taken out elsewhere."""
    own = call.place.scope.bindings.get(call.text.partition(".")[0], [])
    behind = any(call.text.startswith(f"{found.text}.module") for found in own)
    return bool(taken and own) and not taken & set(own) and not behind


def _taken_out(module: Module, value: ast.expr | None, place: Place) -> str:
    """Return ``model.module`` for what takes a model out of its wrap, in every case or in one; the text of a name else."""
    value = value.body if isinstance(value, ast.IfExp) else value
    if not isinstance(value, ast.Call) or not value.args:
        return "" if value is None else text_of(value)
    given = text_of(value.args[0])
    if called(value) == "unwrap_model":
        return f"{given}.module"
    if text_of(value.func) == "getattr" and len(value.args) > 1:
        return f"{given}.module" if ast.unparse(value.args[1]) == "'module'" else ""
    # a function of this file that does it: def unwrap(model): return model.module if ... else model
    target = module.local_function(Call(value, text_of(value.func), place))
    first = next((name for name in getattr(target, "params", ()) if name != "self"), "")
    exits = target.exits if target is not None and first else []
    found = (_taken_out(module, getattr(exit_.stmt, "value", None), exit_) for exit_ in exits)
    return f"{given}.module" if f"{first}.module" in found else ""


def _of_part(inner: dict[str, str], call: Call) -> str | None:
    """Return the wrapped model of which a call runs a part: model.module.encoder.layer(x), net["head"](x)."""
    text = call.text.replace("[]", "")
    found = (name for known, name in inner.items() if call.text.startswith((f"{known}.", f"{known}[]")))
    return next(found, None) if "()" not in text and call.text.count(".") + call.text.count("[]") > 0 else None


def _step_of_helper(module: Module, call: Call) -> Call | None:
    """Return the call, in a step of training, of the function of this file that returns what a call gives."""
    scope, stmt = call.place.scope, call.place.stmt
    if not isinstance(stmt, ast.Return) or call.place.loops or NO_TRAINING.search(scope.name):
        return None
    outer = module.callers(scope)
    return next((each for each in outer if each.place.side is None and _body_of_step(module, each) is not None), None)


def _body_of_step(module: Module, call: Call) -> ast.stmt | None:
    """Return the training step that a call is part of."""
    node = call.place.loops[-1] if call.place.loops else call.place.scope.node
    return node if node in training_steps(module) else None  # type: ignore[return-value]


def _evaluates(module: Module, call: Call, names: set[str]) -> bool:
    """Whether the model only evaluates: eval() stands before a call in its function, and train() nowhere in it."""
    own = [found for found in module.methods("eval", "train") if found.place.scope is call.place.scope]
    own = [found for found in own if found.base in names or found.base.removesuffix(".module") in names]
    before = any(found.method == "eval" and position(found.node) < position(call.node) for found in own)
    return before and not any(found.method == "train" for found in own)


def _reaches_backward(module: Module, call: Call, body: ast.stmt) -> bool:
    """Whether what a call returns goes into a backward pass of the step, followed through variables and loops."""
    reached: set[str] = set()
    for part in (*ast.walk(body), *ast.walk(body)):  # loops come before what they assign, or behind it
        if isinstance(part, ast.Assign | ast.AugAssign | ast.AnnAssign):
            if call.place.stmt is part or (part.value is not None and reached & names_in(part.value)):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                reached |= {name for target in targets for name in names_in(target)} - {"self"}
        elif isinstance(part, ast.For) and reached & names_in(part.iter):
            reached |= names_in(part.target)
    back = [found for found in backward_passes(module) if found in training_steps(module)[body]]
    return any(reached & names_in(found.node) or call.node in ast.walk(found.node) for found in back)
