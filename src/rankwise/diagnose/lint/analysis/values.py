"""How a value is handed on in a file (by functions, parameters, fields), and what it is made of."""

from __future__ import annotations

import ast

from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import called, last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope

# what goes through a loader, and gives its batches on
READERS = frozenset({"tqdm", "enumerate", "iter", "cycle", "infinite", "trange", "track"})
# makers of tensors on the CPU, functions of one tensor, and methods that move one
_FRESH = frozenset(f"torch.{name}" for name in "tensor Tensor FloatTensor as_tensor from_numpy ones zeros full".split())
_OF_ONE = frozenset({"torch.sqrt", "torch.log", "torch.clamp"})
_MOVES = frozenset({"to", "cuda", "type", "type_as"})


def names_of(module: Module, call: Call, depth: int = 3) -> set[str]:
    """Return the last parts of the names by which a file knows what a call makes.

    Followed are assignments, ``loaders["train"] = ...``, dicts and lists of them, and functions of the file that return
    it, alone or in a tuple.
    """
    found, returned = _made(call)
    for index in returned if depth else ():
        for caller in module.callers(call.place.scope):
            found |= _given_to(module, caller, index, depth - 1)
    return found


def _made(call: Call) -> tuple[set[str], list[int | None]]:
    """Return the names of what a call makes in its function, and where it stands in what the function returns."""
    stmt, scope = call.place.stmt, call.place.scope
    found: set[str] = set()
    returned: list[int | None] = []  # where in the tuple; None: the value itself, or something around it
    if isinstance(stmt, ast.Assign | ast.AnnAssign) and stmt.value is not None:
        for target in stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]:
            if isinstance(target, ast.Tuple) and isinstance(stmt.value, ast.Tuple):
                pairs = zip(target.elts, stmt.value.elts, strict=False)
                found |= {_name(part) for part, value in pairs if call.node in ast.walk(value)}
            else:
                found.add(_name(target))
    elif isinstance(stmt, ast.Return) and stmt.value is not None:
        parts = stmt.value.elts if isinstance(stmt.value, ast.Tuple) else []
        returned.append(next((index for index, part in enumerate(parts) if call.node in ast.walk(part)), None))
    found.discard("")
    for value in scope.returned:
        if isinstance(value, ast.Tuple):
            returned += [index for index, part in enumerate(value.elts) if _name(part) in found]
        else:  # itself, or a dict or a list that holds it
            held = value.values if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.List) else []
            returned += [None] if any(_name(part) in found for part in (value, *held)) else []
    return found, returned


def _given_to(module: Module, call: Call, index: int | None, depth: int) -> set[str]:
    """Return the names that a call's result, or one part of it, is bound to."""
    stmt = call.place.stmt
    if index is None or not isinstance(stmt, ast.Assign):
        return names_of(module, call, depth)
    found = set()
    for target in stmt.targets:
        if isinstance(target, ast.Tuple) and stmt.value is call.node and index < len(target.elts):
            found.add(_name(target.elts[index]))
        elif not isinstance(target, ast.Tuple):
            found.add(_name(target))
    return found - {""}


def _name(node: ast.expr | None) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return last(text_of(node)) if isinstance(node, ast.Name | ast.Attribute) else ""


def names_behind(module: Module, names: set[str], scope: Scope, depth: int = 3) -> set[str]:
    """Return names, and those that were handed over to them: by ``self.loader = loader``, and by calls of this file."""
    found = set(names)
    for _ in range(depth):
        more: set[str] = set()
        for binding in module.bindings:
            value = binding.value if last(binding.text) in found else None
            if called(value) in READERS and value.args:  # type: ignore[union-attr]
                value = value.args[0]  # type: ignore[union-attr]
            if isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
                more.add(_name(value))
        # a class takes what its fields are in its __init__
        owner = module.class_of("self", scope)
        functions = [scope, *(each.functions.get("__init__") for each in module.lineage(owner))] if owner else [scope]
        for function in functions:
            for name in (set(function.params) & found) - {"self", "cls"} if function is not None else ():
                more |= {_name(part) for _, part in module.given(function, name)}  # type: ignore[arg-type]
        more.discard("")
        if more <= found:
            break
        found |= more
    return found


def is_on_cpu(module: Module, node: ast.expr | None, scope: Scope, depth: int = 5) -> bool:
    """Whether a value is computed from fresh tensors that nothing moves."""
    text = text_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    if not depth or (text and len(list(module.bindings_of(text, scope))) > 1):
        return False
    shown = module.value(node, scope)
    parts: list[ast.expr] = []
    if isinstance(shown, ast.BinOp):
        sides = (side for side in (shown.left, shown.right) if not isinstance(side, ast.Constant))
        parts = [side for side in sides if called(side) not in {"len", "float", "int"}]
    elif isinstance(shown, ast.Call) and not any(word.arg == "device" for word in shown.keywords):
        name = module.name_of(shown.func)
        if name in _FRESH:  # as_tensor leaves a tensor where it is
            return name != "torch.as_tensor" or isinstance(shown.args[0] if shown.args else None, ast.List)
        if name in _OF_ONE:
            parts = shown.args[:1]
        elif isinstance(shown.func, ast.Attribute) and (not name or "()" in name) and shown.func.attr not in _MOVES:
            parts = [shown.func.value]
    return bool(parts) and all(is_on_cpu(module, part, scope, depth - 1) for part in parts)
