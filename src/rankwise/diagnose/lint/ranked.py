"""What differs between ranks as far as a file shows it: seeds, values with a rank in them; and what runs on several."""

from __future__ import annotations

import ast
import re

from rankwise.diagnose.lint.module import Module
from rankwise.diagnose.lint.names import text_of
from rankwise.diagnose.lint.scopes import Call, Scope

__all__ = ["has_rank", "runs_on_several", "same_on_all", "seeds"]


def seeds(module: Module) -> list[Call]:
    """Return the calls that seed a generator of this process."""
    known = {"manual_seed", "seed", "set_seed", "seed_everything", "seed_all", "fix_seed", "manual_seed_all"}
    return [call for call in module.calls if call.method in known and (call.node.args or call.node.keywords)]


def same_on_all(module: Module, call: Call) -> bool:
    """Whether a seed, as far as is seen, holds no rank: by its name, or by what its parts were bound to."""
    parts = [*call.node.args, *(word.value for word in call.node.keywords)]
    return not any(has_rank(module, part, call.place.scope) for part in parts)


_RANKED = re.compile(r"rank|process_|worker|device_specific|gpu|seed_offset", re.IGNORECASE)


def has_rank(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether an expression holds something that differs between ranks."""
    text = ast.unparse(node)
    if _RANKED.search(text):
        return True
    if depth == 0:
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            for found in module.bindings_of(text_of(part), scope):
                value = found.value if found.value is not None else getattr(found.place.stmt, "value", None)
                if value is not None and value is not node and has_rank(module, value, found.place.scope, depth - 1):
                    return True
    return False


def runs_on_several(module: Module) -> bool:
    """Whether a Trainer of Lightning is told to use several devices."""
    if not any(module.imports.uses(name) for name in ("lightning", "pytorch_lightning")):
        return False
    for call in module.methods("Trainer"):
        plan, devices = call.argument("strategy"), call.argument("devices")
        many = devices is not None and not (isinstance(devices, ast.Constant) and devices.value in {1, "1", "auto"})
        if (plan is not None and re.search("ddp|fsdp|deepspeed", ast.unparse(plan), re.IGNORECASE)) or many:
            return True
    return False
