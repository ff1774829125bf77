"""Which branch runs on which ranks: tests of the rank, recognised in the many ways people write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Literal

from rankwise.diagnose.lint.analysis.names import last, text_of

Side = Literal["main", "other"]  # runs on the main rank (or one of each node) only; runs on the others only

LOCAL_RANK_NAMES = frozenset(
    "local_rank localrank ddp_local_rank local_process_index node_local_rank local_process_id".split()
)
RANK_NAMES = LOCAL_RANK_NAMES | frozenset(
    "rank global_rank world_rank ddp_rank process_index rank_id proc_id procid process_rank dist_rank my_rank "
    "get_rank get_local_rank get_global_rank get_world_rank get_ordinal worker_rank process_id gpu_id globalrank "
    "data_parallel_rank get_data_parallel_rank dp_rank".split()
)
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"})
_MAIN_NAME = re.compile(
    r"_*(is|am|on|check)?_*(i_)?(the_)?_*(local|global|world)?_*"
    r"(process_zero|main|master|chief|primary|rank_?(0|zero)|root|global_zero|zero_rank|first|lead(er)?)_*"
    r"(process|proc|rank|worker|node|gpu|local|device|ordinal)?_*"
)
_CHOSEN_RANK = re.compile(r"_*(main|master|root|print|log|logging|save|write|eval|display|chief|src|dst)_?rank")
_BARE = frozenset("main root first primary lead leader master chief first_node root_node is_root is_first".split())
_PLAIN_RANKS = frozenset("rank global_rank world_rank ddp_rank my_rank local_rank ddp_local_rank".split())
_MODE_WORD = re.compile(r"dist|ddp|world|multi|rank|gpu|parallel|nproc|num_proc|fsdp|horovod|launcher", re.IGNORECASE)

Lookup = Callable[[str], "ast.expr | None"]


def is_rank(node: ast.expr, lookup: Lookup) -> bool:
    """Whether an expression is a rank, global or local."""
    return _rank_kind(node, lookup, 0) is not None


def is_local_rank(node: ast.expr, lookup: Lookup) -> bool:
    """Whether an expression is a rank on its node."""
    return _rank_kind(node, lookup, 0) == "local"


def _rank_kind(node: ast.expr, lookup: Lookup, depth: int) -> str | None:
    """Return "local", "global" or None; an assignment of the variable counts more than its name."""
    if isinstance(node, ast.NamedExpr):
        return _rank_kind(node.value, lookup, depth) or _rank_kind(node.target, lookup, depth)
    if isinstance(node, ast.Call):
        name = last(text_of(node.func))
        if name in {"getattr", "get"} and (key := _key(node, name)) is not None:
            return _named_kind(key.lower())
        if name == "int" and len(node.args) == 1:
            return _rank_kind(node.args[0], lookup, depth)
        if name in {"get", "getenv"} and node.args and _variable(node.args[0]):
            return _variable(node.args[0])
        if name in RANK_NAMES:
            return "local" if "local" in name else "global"
        answer = None if node.args or node.keywords or depth > 2 else lookup(text_of(node.func) + "()")
        return None if answer is None else _rank_kind(answer, lookup, depth + 1)
    if isinstance(node, ast.Subscript):
        if text_of(node.value).endswith("environ"):
            return _variable(node.slice)
        item = node.slice.value if isinstance(node.slice, ast.Constant) else None  # config["local_rank"]
        return _named_kind(item.lower()) if isinstance(item, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):  # rank % gpus_per_node
        return "local" if _rank_kind(node.left, lookup, depth) else None
    if isinstance(node, ast.IfExp):  # get_rank() if is_initialized() else 0
        return _rank_kind(node.body, lookup, depth) or _rank_kind(node.orelse, lookup, depth)
    if isinstance(node, ast.Name | ast.Attribute):
        text = text_of(node)
        value = lookup(text) if depth < 3 else None
        if value is not None:
            kind = _rank_kind(value, lookup, depth + 1)
            if kind is not None:
                return kind
        return _named_kind(last(text).lower())
    return None


def _key(node: ast.Call, name: str) -> str | None:
    """Return the name that ``getattr(args, "rank", 0)`` or ``config.get("rank")`` asks for, None for a variable."""
    index = 1 if name == "getattr" else 0
    part = node.args[index] if len(node.args) > index else None
    found = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None
    return None if found is None or found in _RANK_VARIABLES or "environ" in text_of(node.func) else found


def _named_kind(name: str) -> str | None:
    if name not in RANK_NAMES:
        return None
    return "local" if name in LOCAL_RANK_NAMES or name == "gpu_id" else "global"


def _variable(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES:
        return "local" if "LOCAL" in str(node.value) else "global"
    return None


def is_main_word(name: str) -> bool:
    """Whether a name says "this is the main rank"."""
    name = name.lower()
    return name not in _BARE and _MAIN_NAME.fullmatch(name) is not None


def is_mode_test(node: ast.expr) -> bool:
    """Whether a test asks for a way of running (distributed or not, how many ranks), equal on all ranks."""
    for part in ast.walk(node):
        word = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else None
        if word is None and isinstance(part, ast.Constant) and isinstance(part.value, str):
            word = part.value
        if word is not None and _MODE_WORD.search(word):
            return True
    return False


def side_of(test: ast.expr, lookup: Lookup, depth: int = 0) -> Side | None:
    """Return on which ranks a test holds: the main one only, the others only, or None: all, or unknown."""
    if depth > 4:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        named = last(text_of(inner.func)) in RANK_NAMES if isinstance(inner, ast.Call) else is_rank(inner, lookup)
        return "main" if named else _opposite(side_of(inner, lookup, depth + 1))
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.BitAnd):  # `(loss < best) & (rank == 0)`
        return side_of(test.left, lookup, depth + 1) or side_of(test.right, lookup, depth + 1)
    if isinstance(test, ast.BoolOp):
        sides = [side_of(value, lookup, depth + 1) for value in test.values]
        if isinstance(test.op, ast.And):  # each part narrows it
            return next((side for side in sides if side), None)
        # `not distributed or rank == 0`: the rest is equal on all ranks, and false where there are several
        rest = [value for value, side in zip(test.values, sides, strict=True) if side is None]
        found = {side for side in sides if side}
        return found.pop() if len(found) == 1 and all(is_mode_test(value) for value in rest) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, lookup)
    if isinstance(test, ast.NamedExpr):
        return side_of(test.value, lookup, depth + 1)
    if isinstance(test, ast.Call):
        return _called(test, lookup, depth)
    if isinstance(test, ast.IfExp) and _is_nothing(test.orelse) and (side := side_of(test.test, lookup, depth + 1)):
        return side  # `writer = Writer() if rank == 0 else None`
    if isinstance(test, ast.IfExp):  # `rank == 0 if distributed else True`
        return side_of(test.body, lookup, depth + 1) or side_of(test.orelse, lookup, depth + 1)
    if isinstance(test, ast.Name | ast.Attribute):
        text = text_of(test)
        value = lookup(text)
        if value is not None and (side := side_of(value, lookup, depth + 1)):
            return side
        # it is so on all ranks; a field may be set from outside
        if isinstance(test, ast.Name) and isinstance(value, ast.Constant) and value.value is True:
            return None
        if isinstance(test, ast.Name) and test.id in _PLAIN_RANKS and is_rank(test, lookup):  # `if rank:`
            return "other"
        return "main" if is_main_word(last(text)) else None
    return None


def _called(test: ast.Call, lookup: Lookup, depth: int) -> Side | None:
    name = last(text_of(test.func))
    if is_main_word(name):
        return "main"
    if name in {"getattr", "get"} and (key := _key(test, name)) is not None and is_main_word(key):
        return "main"
    if name in {"get_rank", "rank"} and is_rank(test, lookup):  # `if dist.get_rank():`
        return "other"
    answer = None if test.args or test.keywords else lookup(text_of(test.func) + "()")
    return None if answer is None else side_of(answer, lookup, depth + 1)


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _opposite(side: Side | None) -> Side | None:
    return {"main": "other", "other": "main"}.get(side or "")  # type: ignore[return-value]


def _compared(test: ast.Compare, lookup: Lookup) -> Side | None:
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(left, ast.Constant) and not isinstance(op, ast.In | ast.NotIn):
        left, right = right, left
        op = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt(), ast.LtE: ast.GtE(), ast.GtE: ast.LtE()}.get(type(op), op)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
        values = {_number(item) for item in right.elts}
        if 0 in values and values <= {-1, 0, None} and is_rank(left, lookup):
            return "main" if isinstance(op, ast.In) else "other"
        return None
    if isinstance(op, ast.Is | ast.IsNot) and _is_nothing(right) and isinstance(left, ast.Name | ast.Attribute):
        value = lookup(text_of(left))
        there = side_of(value, lookup, 3) if isinstance(value, ast.IfExp) and _is_nothing(value.orelse) else None
        return there if isinstance(op, ast.IsNot) else _opposite(there)
    if isinstance(right, ast.Name | ast.Attribute):  # `rank == args.main_rank`, and `rank == MAIN` of `MAIN = 0`
        chosen = _CHOSEN_RANK.fullmatch(last(text_of(right)).lower())
        right = ast.Constant(0) if chosen else lookup(text_of(right)) or right
    number = _number(right)
    if number is None or not is_rank(left, lookup):
        return None
    if isinstance(op, ast.Eq | ast.NotEq) and number >= 0:  # -1 means "not distributed": equal on all ranks
        same: Side = "main" if number == 0 else "other"
        return same if isinstance(op, ast.Eq) else _opposite(same)
    if (isinstance(op, ast.Lt) and number == 1) or (isinstance(op, ast.LtE) and number == 0):
        return "main"
    if (isinstance(op, ast.Gt) and number == 0) or (isinstance(op, ast.GtE) and number == 1):
        return "other"
    return None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lstrip("-").isdecimal():
        return int(node.value)
    return None
