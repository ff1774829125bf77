"""Which models are wrapped, and by which names a file knows them: results of functions, fields, parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.diagnose.lint.analysis.module import Module, once, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, excludes

DDP = "torch.nn.parallel.DistributedDataParallel"
DEVICE_MOVES = frozenset({"to", "cuda", "cpu"})
_OF_ITSELF = DEVICE_MOVES | {"train"}
WRAPPERS = (DDP, "apex.parallel.DistributedDataParallel")
SHARDS = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard")
_MOST_NAMES = 100  # of functions that call each other in a circle


@dataclass(slots=True, eq=False)
class Wrap:
    """``text = DDP(inner, ...)``; the text is "" where the wrapped model has no name of its own.

    `call` stands where the name begins to mean the wrapped model: the call of DDP itself, which is `made`, or the call
    of a function that returns what it made.
    """

    text: str
    inner: str
    call: Call
    made: Call

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.call.place

    @property
    def moves_before(self) -> list[Call]:
        """The calls before it that put the model, as a whole, on a device."""
        moves = (call for call in self.place.scope.calls if call.method in DEVICE_MOVES and call.base in self.names)
        return [call for call in moves if position(call.node) <= position(self.call.node)]

    @property
    def names(self) -> set[str]:
        """Texts that mean the model behind the wrap."""
        return {name for name in (self.text, self.text and f"{self.text}.module", self.inner) if name}

    def also(self, text: str, place: Place) -> Wrap:
        """Return another name of the wrapped model, which begins at a place."""
        node = ast.copy_location(ast.Call(self.made.node.func, [], []), place.stmt)
        return Wrap(text, "", Call(node, "", place), self.made)


@once
def wraps(module: Module) -> list[Wrap]:
    """Return where models are wrapped by DDP, in order."""
    return _wraps(module, *WRAPPERS)


def _wraps(module: Module, *wrappers: str) -> list[Wrap]:
    targets: dict[ast.Call, str] = {}
    for binding in module.bindings:
        value = binding.value
        for candidate in (value, getattr(value, "body", None), getattr(value, "orelse", None)):
            if isinstance(candidate, ast.Call):
                targets[candidate] = binding.text
    found = []
    for call in module.named(*wrappers):
        inner = unmoved(call.argument("module", 0))  # DDP(model.to(device))
        name = text_of(inner) if isinstance(inner, ast.Name | ast.Attribute) else ""
        found.append(Wrap(targets.get(call.node, ""), name, call, call))
    return found


def unmoved(node: ast.expr | None) -> ast.expr | None:
    """Return what ``model.to(device).train()`` and the like move or set; anything else as it is."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_ITSELF:
        node = node.func.value
    return node


@once
def known_wraps(module: Module) -> list[Wrap]:
    """Return the wraps of DDP, each with the other names that the file gives to what it returns."""
    return _with_names(module, list(wraps(module)))


@once
def known_sharded(module: Module) -> list[Wrap]:
    """Return the wraps of FSDP with their other names."""
    return _with_names(module, _wraps(module, SHARDS[0]))


@once
def known_parallel(module: Module) -> list[Wrap]:
    """Return the wraps of DataParallel, which puts one process's model on several GPUs, with their other names."""
    return _with_names(module, _wraps(module, "torch.nn.DataParallel"))


@once
def known_shards(module: Module) -> list[Wrap]:
    """Return the models that fully_shard changes in place, each with its other names and those of its callers."""
    made = [(call, call.node.args[0]) for call in module.named(SHARDS[1]) if call.node.args]
    found = [Wrap(text_of(given), text_of(given), call, call) for call, given in made]
    for wrap in found:  # grows while it is read
        scope = wrap.place.scope
        for call, part in module.given(scope, wrap.text) if wrap.text in scope.params else ():
            if isinstance(part, ast.Name | ast.Attribute) and len(found) < _MOST_NAMES:
                found.append(Wrap(text_of(part), "", call, wrap.made))
    return _with_names(module, found)


@once
def known_prepared(module: Module) -> list[Wrap]:
    """Return the models that Accelerate's prepare() gives back, with their other names: DDP where ranks are several."""
    models = {call.base for call in module.methods("train", "eval", "parameters", "named_parameters")}
    models |= {call.text for call in module.calls}
    calls = module.methods("prepare") if "accelerate.Accelerator" in module.by_name else ()
    # in the order in which they were given
    calls = (call for call in calls if len(call.targets) == len(call.node.args))
    found = [Wrap(text_of(part), "", call, call) for call in calls for part in call.targets]
    return _with_names(module, [wrap for wrap in found if wrap.text in models])


@once
def prepared(module: Module) -> set[str]:
    """Return what a prepare(), as Accelerate's, gives back."""
    return {text_of(part) for call in module.methods("prepare") for part in call.place.targets}


def _with_names(module: Module, found: list[Wrap]) -> list[Wrap]:
    seen = {(wrap.text, wrap.place.scope) for wrap in found if wrap.text}
    for wrap in found:  # grows while it is read
        for more in (*_results(module, wrap), *_others(module, wrap), *_parameters(module, wrap, found)):
            if (more.text, more.place.scope) not in seen:
                seen.add((more.text, more.place.scope))
                found.append(more)
    return [wrap for wrap in found if wrap.text]


def _results(module: Module, wrap: Wrap) -> Iterator[Wrap]:
    """Yield what callers bind to the result of a function that returns the wrapped model, alone or in a tuple."""
    scopes = [wrap.place.scope]
    if wrap.text.startswith("self.") and (owner := module.class_of("self", wrap.place.scope)) is not None:
        scopes += owner.functions.values()
    for scope, value in ((each, value) for each in scopes for value in each.returned):
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        for index, part in enumerate(parts):
            if part is not wrap.call.node and not _is_name(part, wrap.text):
                continue
            for call in module.callers(scope):
                stmt = call.place.stmt
                if isinstance(stmt, ast.Return) and stmt.value is call.node:
                    yield Wrap("", "", call, wrap.made)
                for target in stmt.targets if isinstance(stmt, ast.Assign) and stmt.value is call.node else ():
                    if isinstance(value, ast.Tuple):
                        listed = target.elts if isinstance(target, ast.Tuple) else []
                        target = listed[index] if len(listed) == len(parts) else ast.Constant(None)  # noqa: PLW2901
                    if isinstance(target, ast.Name | ast.Attribute):
                        yield Wrap(text_of(target), "", call, wrap.made)


def _others(module: Module, wrap: Wrap) -> Iterator[Wrap]:
    """Yield second names: ``self.model = model`` behind the wrap, and ``trainer.model`` for the objects of a class."""
    if not wrap.text:
        return
    owner = module.class_of("self", wrap.place.scope) if wrap.text.startswith("self.") else None
    related = [each for each in module.scopes if owner and module.is_related(owner, each.owner)]
    for scope in (wrap.place.scope, *(each for each in related if each is not wrap.place.scope)):
        for found in scope.bound:
            value = found.value
            if module.made_by(value) == "torch.compile" and value.args:  # type: ignore[union-attr]
                value = value.args[0]  # type: ignore[union-attr]
            late = scope is not wrap.place.scope or position(found.place.stmt) > position(wrap.place.stmt)
            if late and _is_name(value, wrap.text):
                yield wrap.also(found.text, found.place)
    for scope in module.scopes if owner is not None else ():  # what a callback is given: `trainer.model`
        for name in scope.params:
            known = name in {"self", "cls"} or name in scope.bindings
            if not known and module.is_related(owner, module.class_of(name, scope)):
                yield wrap.also(name + wrap.text[4:], scope.start)
    for call in module.methods(owner.name) if owner is not None else ():
        for target in call.targets:
            if isinstance(target, ast.Name):
                yield Wrap(target.id + wrap.text[4:], "", call, wrap.made)


def _parameters(module: Module, wrap: Wrap, known: list[Wrap]) -> Iterator[Wrap]:
    """Yield the parameters for which every call in this file gives a wrapped model."""
    texts = {found.text for found in known}
    for call in module.calls if wrap.text else ():
        if not any(_is_name(part, wrap.text) for part in call.given) or not sees(module, wrap, call):
            continue
        target = module.local_function(call)
        for name in target.params if target is not None else ():
            assert target is not None
            if name in {"self", "cls"} or name in target.bindings:
                continue
            parts = [part for _, part in module.given(target, name)]
            wrapped = all(part is not None and text_of(part) in texts for part in parts)
            if wrapped and any(_is_name(part, wrap.text) for part in parts):
                yield wrap.also(name, target.start)


def _is_name(node: ast.expr | None, text: str) -> bool:
    return bool(text) and isinstance(node, ast.Name | ast.Attribute) and text_of(node) == text


def sees(module: Module, wrap: Wrap, call: Call) -> bool:
    """Whether the name of a wrap means the wrapped model where a call stands."""
    scope = wrap.place.scope
    if excludes(wrap.made.place, call.place):
        return False
    if wrap.text.startswith("self."):
        return module.is_related(*(module.class_of("self", each.place.scope) for each in (wrap, call)))
    root = wrap.text.partition(".")[0].removesuffix("[]")
    for each in call.place.scope.chain():
        if each is scope:
            behind = position(call.node) > position(wrap.call.node)
            return each is not call.place.scope or (behind and not is_rebound(wrap, call))
        if each.is_function and (root in each.params or root in each.bindings or wrap.text in each.bindings):
            return False
    return False


def is_rebound(wrap: Wrap, call: Call) -> bool:
    """Whether the name means another model by then, or the one behind the wrap."""
    for binding in wrap.place.scope.bindings.get(wrap.text, ()):
        at, value = position(binding.place.stmt), binding.value
        if position(wrap.place.stmt) < at < position(call.place.stmt):
            unwrapped = isinstance(value, ast.Call) and "unwrap" in last(text_of(value.func))
            if value is None or unwrapped or _is_name(value, f"{wrap.text}.module"):
                return True
            if wrap.text not in {text_of(part) for part in ast.walk(value) if isinstance(part, ast.expr)}:
                return True
    return False
