"""RW115: data that each rank prepares as if it were alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import is_alike, is_on_all, missing_file
from rankwise.diagnose.lint.analysis.facts import is_const, is_distributed
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


_WRITES = frozenset(
    "dump save savez savez_compressed save_to_disk to_csv to_parquet to_pickle to_json to_feather write_text "
    "write_bytes extractall urlretrieve download_url download save_file write_table memmap".split()
)
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
        missing = missing_file(branch)
        inside = [call for call in module.calls if branch in call.place.branches] if missing is not None else []
        writes = [call for call in inside if _writes(call)]
        if missing is None or not writes or any(_FIRST.search(call.method) for call in inside):
            continue
        path = missing.args[0] if missing.args else missing.func
        if is_on_all(module, writes[0].place) and is_alike(module, writes[0], path):
            yield Hit(writes[0].node, {"path": ast.unparse(path)})
    loaded = {call.text for call in module.calls if call.place.side == "main"}
    for call in module.calls:
        asked = call.keyword("download")
        if asked is None or not is_const(asked.value, True) or call.text in loaded:
            continue
        alike = all("__name__" in ast.unparse(branch.test) for branch in call.place.branches)
        if alike and is_on_all(module, call.place):
            yield Hit(call.node, {"path": f"what {call.text} loads"})


def _writes(call: Call) -> bool:
    if call.method == "open":
        mode = call.argument("mode", 1 if call.text == "open" else 0)
        return isinstance(mode, ast.Constant) and str(mode.value)[:1] in {"w", "x"}
    if call.method in {"save", "dump"} and not call.node.args:
        return False
    return call.method in _WRITES
