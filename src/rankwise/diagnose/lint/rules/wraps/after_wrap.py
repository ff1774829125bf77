"""RW201, RW203, RW205 to RW207: what is done to a model after DDP has wrapped it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rankwise.diagnose.lint.analysis.facts import has_framework, is_const, names_in, training_loops
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place
from rankwise.diagnose.lint.analysis.wrapped import DEVICE_MOVES, Wrap, is_rebound, known_wraps, sees, wraps
from rankwise.diagnose.lint.record import Edit, Fix, Hit, rule

_HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_DTYPE_MOVES = {"half", "double", "bfloat16", "float"}
_MOVES = DEVICE_MOVES | _DTYPE_MOVES
_DTYPES = re.compile(r"torch\.(float|half|double|bfloat|int)|\bdtype\b")
_NOT_TRAINING = re.compile(r"eval|valid|test|infer|predict|sample|generate|visuali|export", re.IGNORECASE)


def calls_behind(wrap: Wrap) -> Iterator[Call]:
    """Yield the calls behind a wrap in its function that a branch of the same `if` does not exclude."""
    inside = set(ast.walk(wrap.made.node))  # what makes the argument runs before the wrap
    for call in wrap.place.scope.calls:
        behind = position(call.node) > position(wrap.call.node) and call.node not in inside
        if behind and not excludes(call.place, wrap.place) and not is_rebound(wrap, call):
            yield call


def excludes(one: Place, other: Place) -> bool:
    """Whether two places lie in different branches of one `if`."""
    sides = {branch.node: branch.taken for branch in other.branches}
    return any(sides.get(branch.node, branch.taken) is not branch.taken for branch in one.branches)


def _is_dtype_move(module: Module, call: Call) -> bool:
    if call.method in _DTYPE_MOVES:
        return call.method != "float"
    return call.method == "to" and any(_DTYPES.search(module.text(part)) for part in call.node.args)


@rule(
    "RW201", "move-after-wrap", "error", "high",
    message="{name} is moved after DDP has wrapped it: gradients silently stop being added up",
    why="DDP registers its hooks on the parameters that it sees. Moving or casting the model afterwards makes new gradient "
    "accumulators without hooks: every rank then trains a model of its own.",
    wrong=_HEAD + """
def prepare(net, device):
    model = DDP(net)
    model = model.to(device)
    return model
""",
    right=_HEAD + """
def prepare(net, device):
    net = net.to(device)
    model = DDP(net)
    return model
""",
    ignore="the model is on that device already, so that nothing moves.",
    fix="safe",
)  # fmt: skip
def move_after_wrap(module: Module) -> Iterator[Hit]:
    """Model = DDP(model) ... model.to(device)."""
    for wrap in wraps(module):
        ids = wrap.call.keyword("device_ids")
        placed = bool(wrap.moves_before) or (ids is not None and not is_const(ids.value, None))
        placed = placed or module.text(wrap.call.node).count(".to(") + module.text(wrap.call.node).count(".cuda(") > 0
        for call in calls_behind(wrap):
            if call.method not in _MOVES or call.base not in wrap.names or call.method == "float" or not wrap.text:
                continue
            if (
                call.method == "to"
                and not call.node.args
                and not any(word.arg in {"device", "dtype"} for word in call.node.keywords)
            ):
                continue  # memory_format alone
            # a second move to the device on which it is changes nothing; `cpu` and saving helpers come at the end
            if not _is_dtype_move(module, call) and (placed or call.method == "cpu" or _names_cpu(call)):
                continue
            if call.place.loops or _NOT_TRAINING.search(call.place.scope.name):
                continue
            yield Hit(call.node, {"name": call.base}, _swap(module, wrap, call))
            break


def _names_cpu(call: Call) -> bool:
    return any(
        isinstance(part, ast.Constant) and part.value == "cpu" for node in call.node.args for part in ast.walk(node)
    )


def _swap(module: Module, wrap: Wrap, call: Call) -> Fix | None:
    """Return the exchange of the wrap's line with the line right behind it that moves or converts the model."""
    here, there = wrap.place, call.place
    if here.block is not there.block or there.index != here.index + 1 or not wrap.inner or "." in wrap.inner:
        return None
    stmt = there.stmt
    value = stmt.value if isinstance(stmt, ast.Assign | ast.Expr) else None
    if value is not call.node or (
        isinstance(stmt, ast.Assign) and [text_of(target) for target in stmt.targets] != [wrap.text]
    ):
        return None
    if not isinstance(here.stmt, ast.Assign) or here.stmt.value is not wrap.call.node:
        return None
    start = module.span(here.stmt)[0]
    end = module.span(stmt)[1]
    new = re.sub(rf"(?<![\w.]){re.escape(wrap.text)}(?!\w)", wrap.inner, module.text(stmt))
    if isinstance(stmt, ast.Expr):
        new = f"{wrap.inner} = {new}"
    between = module.source[module.span(here.stmt)[1] : module.span(stmt)[0]]
    if between.strip():
        return None  # a comment stands there
    return Fix("do it before the wrap", (Edit(start, end, new + between + module.text(here.stmt)),))


@rule(
    "RW203", "syncbn-after-wrap", "error", "high",
    message="convert_sync_batchnorm after the wrap: convert the model, then wrap it",
    why="DDP has registered the parameters of the layers that the conversion replaces; the new ones are not synchronised.",
    wrong=_HEAD + """
def prepare(net):
    model = DDP(net)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model
""",
    right=_HEAD + """
def prepare(net):
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = DDP(net)
    return model
""",
    ignore="never.",
    fix="safe",
)  # fmt: skip
def syncbn_after_wrap(module: Module) -> Iterator[Hit]:
    """The argument is a wrapped model."""
    for wrap in wraps(module):
        for call in calls_behind(wrap):
            argument = call.argument("module", 0)
            if (
                call.method == "convert_sync_batchnorm"
                and argument is not None
                and text_of(argument) in {wrap.text, f"{wrap.text}.module"} - {""}
            ):
                yield Hit(call.node, {}, _swap(module, wrap, call))


@rule(
    "RW205", "params-after-wrap", "error", "medium",
    message="{name} gets parameters after DDP has wrapped it: they are not synchronised",
    why="DDP takes the list of parameters when it is built. Layers that are added or replaced later train on each rank alone.",
    wrong=_HEAD + """
def prepare(net):
    model = DDP(net)
    model.module.head = torch.nn.Linear(8, 2)
    return model
""",
    right=_HEAD + """
def prepare(net):
    net.head = torch.nn.Linear(8, 2)
    return DDP(net)
""",
    ignore="the new layer is never trained.",
)  # fmt: skip
def params_after_wrap(module: Module) -> Iterator[Hit]:
    """model.module.head = nn.Linear(...), add_module, register_parameter."""
    for wrap in wraps(module):
        if not wrap.text:
            continue
        names = {wrap.text, f"{wrap.text}.module"} | ({wrap.inner} if wrap.inner != "self" else set())
        for text, found in wrap.place.scope.bindings.items():
            base = text.rpartition(".")[0]
            if base not in names or text in names:
                continue
            for binding in found:
                value = binding.value
                # a layer that is moved where it is made
                while (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Attribute)
                    and value.func.attr in {*_MOVES, "train"}
                    and isinstance(value.func.value, ast.Call)
                ):
                    value = value.func.value
                made = module.name_of(value.func) if isinstance(value, ast.Call) else ""
                layer = made.startswith("torch.nn.") and last(made)[:1].isupper() and not last(made).endswith("Loss")
                behind = position(binding.place.stmt) > position(wrap.place.stmt) and not excludes(
                    binding.place, wrap.place
                )
                if layer and behind and made != wrap.call.name:
                    yield Hit(binding.place.stmt, {"name": wrap.text})
        for call in calls_behind(wrap):
            if call.method in {"add_module", "register_parameter"} and call.base in names:
                yield Hit(call.node, {"name": wrap.text})


@rule(
    "RW206", "module-forward", "error", "medium",
    message="the forward pass goes through {name}.module: backward does not add up its gradients",
    why="DDP prepares the reduction of gradients in its own forward. A pass through .module skips it, and each rank steps by "
    "its own gradient.",
    wrong=_HEAD + """
def train(net, loader, optimizer):
    model = DDP(net)
    for x in loader:
        model.module(x).sum().backward()
        optimizer.step()
""",
    right=_HEAD + """
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
    wrapped = {wrap.text for wrap in known} | (_prepared(module) if accelerated else set())
    inner = {f"{name}.module": name for name in wrapped}
    for binding in module.bindings:
        value = binding.value.body if isinstance(binding.value, ast.IfExp) else binding.value
        unwrapped = isinstance(value, ast.Call) and last(text_of(value.func)) == "unwrap_model" and value.args
        text = f"{text_of(value.args[0])}.module" if unwrapped else text_of(value) if value is not None else ""  # type: ignore[union-attr]
        if text in inner and binding.text not in wrapped:
            inner[binding.text] = inner[text]
    bare = {wrap.inner: wrap for wrap in known if wrap.inner not in {"", "self", wrap.text} and not wrap.place.branches}
    seen: set[tuple[str, ast.stmt]] = set()
    for call in module.calls if inner else ():
        name = inner.get(call.text) or inner.get(call.base) or _of_part(inner, call)
        if name is None and call.text in bare and sees(module, replace(bare[call.text], text=call.text), call):
            name = bare[call.text].text
        body = None if name is None else _body_of_step(module, call)
        shown = call.node
        if name is not None and body is None:
            outer = _step_of_helper(module, call)
            call, body = (call, None) if outer is None else (outer, _body_of_step(module, outer))  # noqa: PLW2901
        if name is None or body is None:
            continue
        # with a forward pass of the wrapped model in the same step, before backward, DDP is prepared
        back = next(
            (
                each
                for each in module.methods("backward")
                if each.node in body.calls and position(each.node) > position(call.node)
            ),
            None,
        )
        prepared = any(
            found.text == name
            and found.node in body.calls
            and (
                back is None or position(found.node) < position(back.node) or position(found.node) < position(call.node)
            )
            and not (found.place.branches[len(call.place.branches) :] and position(found.node) > position(call.node))
            for found in module.methods(last(name))
        )
        quiet = any(
            re.search("no_grad|inference", ast.unparse(item.context_expr)) for w in call.place.withs for item in w.items
        )
        frozen = _evaluates(module, call, {name, *(text for text, of in inner.items() if of == name)})
        if not (prepared or quiet or frozen or (name, body.node) in seen) and _reaches_backward(module, call, body):
            seen.add((name, body.node))
            yield Hit(shown, {"name": name})


def _of_part(inner: dict[str, str], call: Call) -> str | None:
    """Return the wrapped model of which a call runs a part: model.module.encoder.layer(x), net["head"](x)."""
    text = call.text.replace("[]", "")
    found = (name for known, name in inner.items() if call.text.startswith((f"{known}.", f"{known}[]")))
    return next(found, None) if "()" not in text and call.text.count(".") + call.text.count("[]") > 0 else None


def _step_of_helper(module: Module, call: Call) -> Call | None:
    """Return the call, in a step of training, of the function of this file that returns what a call gives."""
    scope, stmt = call.place.scope, call.place.stmt
    if (
        not isinstance(stmt, ast.Return)
        or call.place.loops
        or not scope.is_function
        or _NOT_TRAINING.search(scope.name)
    ):
        return None
    outer = module.callers(scope)
    return next((each for each in outer if each.place.side is None and _body_of_step(module, each) is not None), None)


@dataclass(frozen=True, slots=True)
class _Step:
    """One training step: the innermost loop around a backward pass, or the function that is one pass of it."""

    node: ast.stmt
    calls: frozenset[ast.Call]


def _body_of_step(module: Module, call: Call) -> _Step | None:
    """Return the training step that a call is part of."""
    loops = training_loops(module)
    node: ast.AST
    if call.place.loops and call.place.loops[-1] in loops:
        node = call.place.loops[-1]
    elif not call.place.loops and any(
        found.place.scope is call.place.scope and not found.place.loops for found in module.methods("backward")
    ):
        node = call.place.scope.node
    else:
        return None
    calls = frozenset(part for part in ast.walk(node) if isinstance(part, ast.Call))
    return _Step(node, calls) if isinstance(node, ast.stmt) else None


def _prepared(module: Module) -> set[str]:
    """Return what prepare() of Accelerate returned."""
    made = (call.place.stmt for call in module.methods("prepare") if isinstance(call.place.stmt, ast.Assign))
    targets = [part for stmt in made for target in stmt.targets for part in getattr(target, "elts", [target])]
    return {text_of(target) for target in targets}


def _evaluates(module: Module, call: Call, names: set[str]) -> bool:
    """Whether the model only evaluates: eval() stands before a call in its function, and train() nowhere in it."""
    own = [found for found in module.methods("eval", "train") if found.place.scope is call.place.scope]
    own = [found for found in own if found.base in names or found.base.removesuffix(".module") in names]
    before = any(found.method == "eval" and position(found.node) < position(call.node) for found in own)
    return before and not any(found.method == "train" for found in own)


def _reaches_backward(module: Module, call: Call, body: _Step) -> bool:
    """Whether what a call returns goes into a backward pass of the step, followed through variables and loops."""
    reached: set[str] = set()
    for part in (*ast.walk(body.node), *ast.walk(body.node)):  # loops come before what they assign, or behind it
        if isinstance(part, ast.Assign | ast.AugAssign | ast.AnnAssign):
            if call.place.stmt is part or (part.value is not None and reached & names_in(part.value)):
                targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                reached |= {name for target in targets for name in names_in(target)} - {"self"}
        elif isinstance(part, ast.For) and reached & names_in(part.iter):
            reached |= names_in(part.target)
    back = [found for found in module.methods("backward") if found.node in body.calls]
    return any(reached & names_in(found.node) or call.node in ast.walk(found.node) for found in back)
