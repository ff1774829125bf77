"""Which models are wrapped, and by which names a file knows them: results of functions, fields, parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, Scope

__all__ = [
    "DDP",
    "DEVICE_MOVES",
    "WRAPPERS",
    "Wrap",
    "is_rebound",
    "known_parallel",
    "known_prepared",
    "known_shards",
    "known_wraps",
    "sees",
    "wraps",
]

DDP = "torch.nn.parallel.DistributedDataParallel"
DEVICE_MOVES = frozenset({"to", "cuda", "cpu"})
WRAPPERS = (DDP, "apex.parallel.DistributedDataParallel")
_MOST_NAMES = 100  # of functions that call each other in a circle
_SHARDS = ("torch.distributed.fsdp.FullyShardedDataParallel",)


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
        return [
            call
            for call in self.place.scope.calls
            if call.method in DEVICE_MOVES
            and call.base in self.names
            and position(call.node) <= position(self.call.node)
        ]

    @property
    def names(self) -> set[str]:
        """Texts that mean the model behind the wrap."""
        return {name for name in (self.text, self.text and f"{self.text}.module", self.inner) if name}


def wraps(module: Module) -> list[Wrap]:
    """Return where models are wrapped by DDP, in order."""
    found = module.cache.get("wraps")
    if found is None:
        found = module.cache["wraps"] = list(_wraps(module, WRAPPERS))
    return found  # type: ignore[return-value]


def _wraps(module: Module, wrappers: tuple[str, ...]) -> Iterator[Wrap]:
    targets: dict[ast.Call, str] = {}
    for binding in module.bindings:
        value = binding.value
        for candidate in (value, getattr(value, "body", None), getattr(value, "orelse", None)):
            if isinstance(candidate, ast.Call):
                targets[candidate] = binding.text
    for call in module.named(*wrappers):
        inner = call.argument("module", 0)
        # DDP(model.to(device)): the model is what is moved
        while isinstance(inner, ast.Call) and last(text_of(inner.func)) in {"to", "cuda", "train"}:
            assert isinstance(inner.func, ast.Attribute)
            inner = inner.func.value
        name = text_of(inner) if isinstance(inner, ast.Name | ast.Attribute) else ""
        yield Wrap(targets.get(call.node, ""), name, call, call)


def known_wraps(module: Module, *, sharded: bool = False) -> list[Wrap]:
    """Return the wraps of DDP, or of FSDP, too, each with the other names that the file gives to what it returns."""
    first = [*wraps(module), *(_wraps(module, _SHARDS) if sharded else ())]
    return _with_names(module, f"known wraps {sharded}", first)


def known_parallel(module: Module) -> list[Wrap]:
    """Return the wraps of DataParallel, which puts one process's model on several GPUs, with their other names."""
    return _with_names(module, "known parallel", list(_wraps(module, ("torch.nn.DataParallel",))))


def known_shards(module: Module) -> list[Wrap]:
    """Return the models that fully_shard changes in place, each with its other names and those of its callers."""
    found = [
        Wrap(text_of(call.node.args[0]), text_of(call.node.args[0]), call, call)
        for call in module.named("torch.distributed.fsdp.fully_shard")
        if call.node.args
    ]
    for wrap in found:  # grows while it is read
        scope = wrap.place.scope
        for call, part in module.given(scope, wrap.text) if wrap.text in scope.params else ():
            if isinstance(part, ast.Name | ast.Attribute) and len(found) < _MOST_NAMES:
                found.append(Wrap(text_of(part), "", call, wrap.made))
    return _with_names(module, "known shards", found)


def known_prepared(module: Module) -> list[Wrap]:
    """Return the models that Accelerate's prepare() gives back, with their other names: DDP where ranks are several."""
    found = []
    models = {call.base for call in module.methods("train", "eval", "parameters", "named_parameters")}
    for call in module.methods("prepare") if "accelerate.Accelerator" in module.by_name else ():
        for target in call.place.stmt.targets if isinstance(call.place.stmt, ast.Assign) else ():
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            if call.place.stmt.value is call.node and len(parts) == len(call.node.args):  # type: ignore[attr-defined]
                found += [Wrap(text_of(part), "", call, call) for part in parts if text_of(part) in models]
    return _with_names(module, "known prepared", found)


def _with_names(module: Module, key: str, found: list[Wrap]) -> list[Wrap]:
    if key not in module.cache:
        seen = {(wrap.text, wrap.place.scope) for wrap in found if wrap.text}
        for wrap in found:  # grows while it is read
            for more in (*_results(module, wrap), *_others(module, wrap), *_parameters(module, wrap, found)):
                if (more.text, more.place.scope) not in seen:
                    seen.add((more.text, more.place.scope))
                    found.append(more)
        module.cache[key] = [wrap for wrap in found if wrap.text]
    return module.cache[key]  # type: ignore[return-value]


def _results(module: Module, wrap: Wrap) -> Iterator[Wrap]:
    """Yield what callers bind to the result of a function that returns the wrapped model, alone or in a tuple."""
    scopes = [wrap.place.scope]
    if wrap.text.startswith("self.") and (owner := module.class_of("self", wrap.place.scope)) is not None:
        scopes += owner.functions.values()
    for exit_ in module.exits:
        scope = exit_.place.scope
        value = exit_.node.value if isinstance(exit_.node, ast.Return) else None
        if value is None or scope not in scopes:
            continue
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
    related = [each for each in module.scopes if owner and each.owner and _is_related(module, owner, each.owner)]
    for scope in (wrap.place.scope, *(each for each in related if each is not wrap.place.scope)):
        for found in (each for listed in scope.bindings.values() for each in listed):
            value = found.value
            if isinstance(value, ast.Call) and value.args and module.name_of(value.func) == "torch.compile":
                value = value.args[0]
            late = scope is not wrap.place.scope or position(found.place.stmt) > position(wrap.place.stmt)
            if late and _is_name(value, wrap.text):
                node = ast.copy_location(ast.Call(wrap.made.node.func, [], []), found.place.stmt)
                yield Wrap(found.text, "", Call(node, "", found.place), wrap.made)
    for scope in module.scopes if owner is not None else ():  # what a callback is given: `trainer.model`
        for name in scope.params if scope.is_function else ():
            kind = None if name in {"self", "cls"} or name in scope.bindings else module.class_of(name, scope)
            if kind is not None and _is_related(module, owner, kind):
                node = ast.copy_location(ast.Call(wrap.made.node.func, [], []), scope.node)
                yield Wrap(name + wrap.text[4:], "", Call(node, "", _start(scope)), wrap.made)
    for call in module.methods(owner.name) if owner is not None else ():
        stmt = call.place.stmt
        for target in stmt.targets if isinstance(stmt, ast.Assign) and stmt.value is call.node else ():
            if isinstance(target, ast.Name):
                yield Wrap(target.id + wrap.text[4:], "", call, wrap.made)


def _parameters(module: Module, wrap: Wrap, known: list[Wrap]) -> Iterator[Wrap]:
    """Yield the parameters for which every call in this file gives a wrapped model."""
    texts = {found.text for found in known}
    for call in module.calls if wrap.text else ():
        given = [*call.node.args, *(word.value for word in call.node.keywords)]
        if not any(_is_name(part, wrap.text) for part in given) or not sees(module, wrap, call):
            continue
        target = module.local_function(call)
        for name in target.params if target is not None else ():
            assert target is not None
            parts = [part for _, part in module.given(target, name)]
            mine = name not in {"self", "cls"} and any(_is_name(part, wrap.text) for part in parts)
            if (
                mine
                and name not in target.bindings
                and all(part is not None and text_of(part) in texts for part in parts)
            ):
                node = ast.copy_location(ast.Call(wrap.made.node.func, [], []), target.node)
                yield Wrap(name, "", Call(node, "", _start(target)), wrap.made)


def _start(scope: Scope) -> Place:
    assert scope.place is not None
    return Place(scope.place.stmt, [], 0, scope, (), (), (), ())


def _is_name(node: ast.expr | None, text: str) -> bool:
    return bool(text) and isinstance(node, ast.Name | ast.Attribute) and text_of(node) == text


def sees(module: Module, wrap: Wrap, call: Call) -> bool:
    """Whether the name of a wrap means the wrapped model where a call stands."""
    scope = wrap.place.scope
    if wrap.text.startswith("self."):
        mine, other = (module.class_of("self", each.place.scope) for each in (wrap, call))
        return _is_related(module, mine, other)
    root = wrap.text.partition(".")[0].removesuffix("[]")
    for each in call.place.scope.chain():
        if each is scope:
            behind = position(call.node) > position(wrap.call.node)
            return each is not call.place.scope or (behind and not is_rebound(wrap, call))
        if each.is_function and (root in each.params or root in each.bindings or wrap.text in each.bindings):
            return False
    return False


def _is_related(module: Module, one: Scope | None, other: Scope | None) -> bool:
    if one is None or other is None:
        return False
    return one in module.lineage(other) or other in module.lineage(one)


def is_rebound(wrap: Wrap, call: Call) -> bool:
    """Whether the name means another model by then, or the one behind the wrap."""
    for binding in wrap.place.scope.bindings.get(wrap.text, ()):
        at = position(binding.place.stmt)
        if position(wrap.place.stmt) < at < position(call.place.stmt):
            value = binding.value
            inside = (
                value is not None
                and not _is_name(value, f"{wrap.text}.module")
                and not (isinstance(value, ast.Call) and "unwrap" in last(text_of(value.func)))
                and wrap.text in {text_of(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
            )
            if not inside:
                return True
    return False
