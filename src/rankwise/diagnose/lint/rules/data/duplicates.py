"""RW115: data that each rank prepares as if it were alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    effective_side,
    has_rank,
    is_before_ranks,
    is_const,
    is_distributed,
    is_handed_over,
    spawns,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


_WRITES = frozenset(
    "dump save savez savez_compressed save_to_disk to_csv to_parquet to_pickle to_json to_feather write_text "
    "write_bytes extractall urlretrieve download_url download save_file write_table memmap".split()
)
_EXISTS = frozenset("exists isfile is_file isdir is_dir".split())
_FIRST = re.compile(r"first|zero|main|master|lock|barrier", re.IGNORECASE)


@rule(
    "RW115", "prepared-by-all", "warning", "medium",
    message="every rank finds {path} missing and writes it at the same time; others read it half written",
    why="All ranks run the same lines. Let one rank write, put a barrier behind it, and let all read.",
    wrong=_HEAD + """
import os
import pickle

def load(path, make):
    dist.init_process_group("nccl")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            pickle.dump(make(), file)
    with open(path, "rb") as file:
        return pickle.load(file)
""",
    right=_HEAD + """
import os
import pickle

def load(path, make):
    dist.init_process_group("nccl")
    if dist.get_rank() == 0 and not os.path.exists(path):
        with open(path, "wb") as file:
            pickle.dump(make(), file)
    dist.barrier()
    with open(path, "rb") as file:
        return pickle.load(file)
""",
    ignore="the file is written whole or not at all, or was made before the job starts.",
)  # fmt: skip
def prepared_by_all(module: Module) -> Iterator[Hit]:
    """`if not exists(path):` around what writes, on every rank."""
    if not is_distributed(module):
        return
    for branch in module.branches:
        if not isinstance(branch.node, ast.If):
            continue
        missing = next((part for part in ast.walk(branch.test) if _is_missing(part)), None)
        if missing is None or branch.side:
            continue
        inside = [
            call
            for call in module.calls
            if any(each.node is branch.node and each.taken for each in call.place.branches)
        ]
        writes = [call for call in inside if _writes(call)]
        if not writes or any(_FIRST.search(call.method) for call in inside) or not _on_all(module, writes[0]):
            continue
        path = missing.operand.args[0] if missing.operand.args else missing.operand.func  # type: ignore[attr-defined]
        own = has_rank(module, path, writes[0].place.scope)
        if not own and not re.search("rank|local|worker|proc", ast.unparse(path), re.IGNORECASE):
            yield Hit(writes[0].node, {"path": ast.unparse(path)})
    loaded = {call.text for call in module.calls if call.place.side == "main"}
    for call in module.calls:
        asked = call.keyword("download")
        if asked is None or not is_const(asked.value, True) or call.text in loaded:
            continue
        alike = all("__name__" in ast.unparse(branch.test) for branch in call.place.branches)
        if alike and _on_all(module, call):
            yield Hit(call.node, {"path": f"what {call.text} loads"})


def _is_missing(node: ast.AST) -> bool:
    """Whether a part of a test asks that a file is not there."""
    asked = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else None
    return isinstance(asked, ast.Call) and last(text_of(asked.func)) in _EXISTS


def _writes(call: Call) -> bool:
    if call.method == "open":
        mode = call.argument("mode", 1 if call.text == "open" else 0)
        return isinstance(mode, ast.Constant) and str(mode.value)[:1] in {"w", "x"}
    if call.method in {"save", "dump"} and not call.node.args:
        return False
    return call.method in _WRITES


def _on_all(module: Module, call: Call) -> bool:
    """Whether every rank makes a call: no test of the rank, no lock and no context around it, or around its function."""
    places = [call.place]
    scope = next((found for found in call.place.scope.chain() if found.is_function), None)
    callers = [] if scope is None else module.callers(scope)
    named = scope is not None and re.search("rank|main_|master", scope.name)
    if scope is not None and (not callers or named) and not is_handed_over(module, scope):
        spoken = {"main", "train", "run", "worker", "main_worker", "fit", "load"}
        if scope.name not in spoken and "torch.distributed.init_process_group" not in {one.name for one in scope.calls}:
            return False
    if scope is None and spawns(module):
        return False
    for caller in callers:
        places.append(caller.place)
        outer = next((found for found in caller.place.scope.chain() if found.is_function), None)
        places += [found.place for found in module.callers(outer)] if outer is not None else []
    for place in places:
        if effective_side(module, place) or is_before_ranks(module, place.scope):
            return False
        if any(_FIRST.search(ast.unparse(item.context_expr)) for with_ in place.withs for item in with_.items):
            return False
        # `if rank != 0: barrier()` before, and `if rank == 0: barrier()` behind, let the main rank go first
        if any(found.method in {"barrier", "wait_for_everyone"} and found.place.side for found in place.scope.calls):
            return False
    return True
