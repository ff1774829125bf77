"""Where tensors lie, as far as what makes them says."""

from __future__ import annotations

import ast

from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Scope

__all__ = ["is_on_cpu"]

_FRESH = frozenset(f"torch.{name}" for name in "tensor Tensor FloatTensor as_tensor from_numpy ones zeros full".split())
_OF_ONE = frozenset({"torch.sqrt", "torch.log", "torch.clamp"})
_MOVES = frozenset({"to", "cuda", "type", "type_as"})


def is_on_cpu(module: Module, node: ast.expr | None, scope: Scope, depth: int = 5) -> bool:
    """Whether a value is computed from fresh tensors that nothing moves."""
    text = text_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    if not depth or (text and len(list(module.bindings_of(text, scope))) > 1):
        return False
    shown = module.value(node, scope)
    parts: list[ast.expr] = []
    if isinstance(shown, ast.BinOp):
        parts = [side for side in (shown.left, shown.right) if not _is_number(side)]
    elif isinstance(shown, ast.Call) and not any(word.arg == "device" for word in shown.keywords):
        name = module.name_of(shown.func)
        if name in _FRESH:  # as_tensor leaves a tensor where it is
            return name != "torch.as_tensor" or isinstance(shown.args[0] if shown.args else None, ast.List)
        if name in _OF_ONE:
            parts = shown.args[:1]
        elif isinstance(shown.func, ast.Attribute) and (not name or "()" in name) and shown.func.attr not in _MOVES:
            parts = [shown.func.value]
    return bool(parts) and all(is_on_cpu(module, part, scope, depth - 1) for part in parts)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.Call) and text_of(node.func) in {"len", "float", "int"}
    )
