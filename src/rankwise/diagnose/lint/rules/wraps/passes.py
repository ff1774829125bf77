"""RW206, RW221: forward passes that go past the wrap, and attributes of the model that are asked of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from rankwise.diagnose.lint.analysis.facts import NO_TRAINING, backward_passes, has_framework, training_steps
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, last, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Place
from rankwise.diagnose.lint.analysis.wrapped import DDP, Wrap, is_rebound, known_prepared, known_wraps, prepared, sees
from rankwise.diagnose.lint.record import HEAD, Hit, Rule


@Rule(
    "RW206", "module-forward", "error", "medium",
    message="the forward pass goes through {name}.module: backward does not add up its gradients",
    why="DDP prepares the reduction of gradients in its own forward. A pass through .module skips it, and each rank steps by "
    "its own gradient.",
    example=HEAD + """
 def train(net, loader, optimizer):
     model = DDP(net)
     for x in loader:
-        model.module(x).sum().backward()
+        model(x).sum().backward()
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


# the public attributes of nn.Module and of DistributedDataParallel
OWN = frozenset(
    "add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr float "
    "forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers "
    "named_children named_modules named_parameters parameters register_backward_hook register_buffer register_forward_hook "
    "register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train "
    "training type xpu zero_grad "
    "bucket_bytes_cap broadcast_bucket_size broadcast_buffers buffer_hook device device_ids device_mesh device_type dim "
    "find_unused_parameters gather gradient_as_bucket_view is_multi_device_module join join_hook logger "
    "mixed_precision module no_sync output_device parameters_to_ignore process_group reducer register_comm_hook "
    "require_backward_grad_sync require_forward_param_sync scatter static_graph to_kwargs will_sync_module_buffers "
    "T_destination batched_grad_copy bucket_bytes_cap_default bucket_bytes_cap_list forward_sync_buffers join_device "
    "join_process_group modules_buffers modules_params named_module_buffers skip_all_reduce_unused_params "
    "use_side_stream_for_tensor_copies".split()
)
# what it was told to be, or to answer for, in this file
_OTHERS = re.compile(r"deepspeed|fsdp|FullySharded|megatron", re.IGNORECASE)
_DELEGATES = re.compile(r"__getattr__|\bsetattr\(")


@Rule(
    "RW221", "attribute-of-wrapped", "error", "medium",
    message="{name} is DDP around the model and has no {attribute!r}: AttributeError; ask {asked}",
    why="DDP hands on the forward pass and nothing else. Methods and attributes of the model itself (save_pretrained, generate, "
    "config) are those of model.module.",
    example=HEAD + """
 def save(net, path):
     model = DDP(net)
     if dist.get_rank() == 0:
-        model.save_pretrained(path)
+        model.module.save_pretrained(path)
""",
    ignore="the attribute is set on the wrapped model elsewhere.",
)  # fmt: skip
def attribute_of_wrapped(module: Module) -> Iterator[Hit]:
    """model.save_pretrained() and the like of a name that means the wrapped model in every run."""
    known = [wrap for wrap in known_wraps(module) if wrap.made.name == DDP]
    # the wrappers of DeepSpeed and FSDP hand attributes on
    others = known_prepared(module)
    known += others if others and not _OTHERS.search(module.source) else []
    known = [wrap for wrap in known if _is_certain(module, wrap)]
    if not known or _DELEGATES.search(module.source) or "mmcv" in module.source:
        return
    texts = {wrap.text for wrap in known}
    set_here = {found.text for found in module.bindings if not isinstance(found.place.stmt, ast.AugAssign)}
    seen: set[tuple[int, str]] = set()
    for node, place in _attributes(module, texts):
        base = text_of(node.value)
        line = node.lineno, node.attr
        if node.attr in OWN or node.attr.startswith("_") or f"{base}.{node.attr}" in set_here or line in seen:
            continue
        at = Call(ast.copy_location(ast.Call(node, [], []), node), "", place)
        if place.tries or _is_asked(place, base):
            continue
        for wrap in known:
            if line not in seen and wrap.text == base and sees(module, wrap, at) and _is_behind(module, wrap, at):
                seen.add(line)
                prepared = wrap.made.method == "prepare"
                asked = f"{wrap.made.base}.unwrap_model({base})" if prepared else f"{base}.module"
                yield Hit(node, {"name": base, "attribute": node.attr, "asked": asked})


def _attributes(module: Module, texts: set[str]) -> Iterator[tuple[ast.Attribute, Place]]:
    """Yield where something is asked of one of some names: in calls, their arguments, and what is bound."""
    heads = tuple(f"{text}." for text in texts)
    for call in module.calls:
        parts = [*call.given, call.node.func] if call.text.startswith(heads) else call.given
        for part in parts:
            yield from ((node, call.place) for node in _chain(part) if text_of(node.value) in texts)
    for binding in module.bindings:
        stmt = binding.place.stmt
        target = [stmt.target] if isinstance(stmt, ast.AugAssign) else []
        for asked in (binding.value, *target, stmt.iter if isinstance(stmt, ast.For) else None):
            yield from ((node, binding.place) for node in _chain(asked) if text_of(node.value) in texts)
    for place in (place for scope in module.scopes for place in scope.exits):
        value = getattr(place.stmt, "value", None)
        yield from ((node, place) for node in _chain(value) if text_of(node.value) in texts)


def _chain(node: ast.expr | None) -> Iterator[ast.Attribute]:
    """Yield a dotted name from its end: ``model.config.size``, ``model.config``."""
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value


def _is_certain(module: Module, wrap: Wrap) -> bool:
    """Whether a name means the wrapped model in every run: no test around the wrap, and no other meaning in the file."""
    if wrap.made.place.branches or wrap.place.branches or wrap.made.place.tries:
        return False
    stmt = wrap.made.place.stmt
    if not isinstance(stmt, ast.Assign | ast.AnnAssign | ast.Return) or stmt.value is not wrap.made.node:
        return False
    if not wrap.text.startswith("self."):
        return True
    # of a field, only what __init__ makes it last is sure everywhere else
    other = [found for found in module.bindings if found.text == wrap.text and found.place.stmt is not wrap.place.stmt]
    mine = wrap.place.scope
    return mine.name == "__init__" and all(
        (found.place.scope is mine and position(found.place.stmt) < position(wrap.place.stmt))
        or not module.is_related(*(module.class_of("self", scope) for scope in (mine, found.place.scope)))
        for found in other
    )


def _is_behind(module: Module, wrap: Wrap, at: Call) -> bool:
    """Whether a place is reached after the wrap: in the function that wraps further down, or not from above it."""
    if at.place.scope is wrap.place.scope:
        return position(at.node) > position(wrap.call.node) and not is_rebound(wrap, at)
    scope = at.place.scope
    if not wrap.text.startswith("self."):
        local = scope.bindings.get(wrap.text, ())
        return not local
    early = [call for call in module.callers(scope) if call.place.scope is wrap.place.scope]
    return all(position(call.node) > position(wrap.call.node) for call in early)


def _is_asked(place: Place, base: str) -> bool:
    """Whether a test around a place asks what the model is: ``hasattr(model, "module")``, ``if args.distributed``."""
    texts = [ast.unparse(branch.test) for branch in place.branches if branch.side is None]
    asks = re.compile(
        rf"(hasattr|isinstance|type)\({re.escape(base)}\b|ddp|distributed|parallel|multi|world", re.IGNORECASE
    )
    return any(asks.search(text) for text in texts)
