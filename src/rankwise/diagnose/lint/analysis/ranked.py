"""What differs between ranks: expressions that hold the rank, and seeds."""

from __future__ import annotations

import ast
import re

from rankwise.diagnose.lint.analysis.facts import names_in
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope

__all__ = ["has_rank", "same_on_all", "seeds"]


def seeds(module: Module) -> list[Call]:
    """Return the calls that seed a generator of this process."""
    known = {"manual_seed", "seed", "set_seed", "seed_everything", "seed_all", "fix_seed", "manual_seed_all"}
    return [call for call in module.calls if call.method in known and (call.node.args or call.node.keywords)]


def same_on_all(module: Module, call: Call) -> bool:
    """Whether a seed, as far as is seen, holds no rank: by its name, or by what its parts were bound to."""
    parts = [*call.node.args, *(word.value for word in call.node.keywords)]
    return not any(has_rank(module, part, call.place.scope) for part in parts)


_RANKED = re.compile(r"rank|process_|worker|device_specific|(?<!n)(?<!num_)gpu(?!s)|seed_offset", re.IGNORECASE)
_RANK_KEY = re.compile(r"(\w+_)?(rank|procid|localid|nodeid)", re.IGNORECASE)


def has_rank(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether an expression holds something that differs between ranks, by its names and by what they were bound to."""
    parts = list(ast.walk(node))
    if any(_RANKED.search(name) for name in names_in(node)):
        return True
    keys = (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    if any(_RANK_KEY.fullmatch(key) for key in keys):  # environ["RANK"]
        return True
    # of an object that is asked for a field, that field counts, and not what else it was made of
    asked = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
    for part in (part for part in parts if depth and isinstance(part, ast.Name | ast.Attribute)):
        for found in module.bindings_of(text_of(part), scope):
            value = found.value if found.value is not None else getattr(found.place.stmt, "value", None)
            if value is None or value is node or (id(part) in asked and not _is_text(value)):
                continue
            if has_rank(module, value, found.place.scope, depth - 1):
                return True
    return False


def _is_text(node: ast.expr) -> bool:
    """Whether a value is a text or a path, which holds what it was made of."""
    made = isinstance(node, ast.Call) and re.search(r"(Path|join|format|str)$", text_of(node.func))
    return bool(made) or isinstance(node, ast.JoinedStr | ast.BinOp)
