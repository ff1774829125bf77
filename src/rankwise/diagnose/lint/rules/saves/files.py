"""RW115, RW316, RW506: what ranks write, open or read without regard to each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.diagnose.lint.analysis.effects import has_rank, is_alike, is_on_all, missing_file, runs_ranks, writes
from rankwise.diagnose.lint.analysis.facts import has_framework, is_const, is_distributed, runs_on_several
from rankwise.diagnose.lint.analysis.guards import side_of
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import text_of, texts_in
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.record import HEAD, Hit, Rule

_RUNS = ("wandb.init", "mlflow.start_run", "comet_ml.Experiment", "neptune.init_run", "swanlab.init", "trackio.init")
_TOLD = ("mode", "group", "disabled", "nested", "settings", "custom_run_id", "with_id")
_NOTES = re.compile(r"add_(scalars?|images?|histogram|text|figure|hparams|video|graph)")
_QUIET = re.compile(r"WANDB_(MODE|DISABLED)|wandb\.(setup|Settings)|offline|shared")


@Rule(
    "RW316", "tracker-on-all-ranks", "warning", "medium",
    message="every rank opens a run of its own with {name}: {number} where one is meant",
    why="Each process that opens one sends its own numbers: world_size runs, or curves drawn over each other in one. Open it, and "
    "log, on the main rank.",
    example="import wandb\n" + HEAD + """
 def main(net, batches):
     dist.init_process_group("nccl")
-    wandb.init(project="scan")
+    rank = dist.get_rank()
+    if rank == 0:
+        wandb.init(project="scan")
     model = DDP(net)
     for x in batches:
-        wandb.log({"loss": model(x).mean().item()})
+        loss = model(x).mean().item()
+        if rank == 0:
+            wandb.log({"loss": loss})
""",
    ignore="each rank is to have a run of its own, in a group.",
)  # fmt: skip
def tracker_on_all_ranks(module: Module) -> Iterator[Hit]:
    """wandb.init, mlflow.start_run, or a SummaryWriter that all ranks write to, under no test of the rank."""
    if not runs_ranks(module):
        return
    for call in module.named(*_RUNS, "neptune.new.init_run", "neptune.new.init"):
        told = any(call.keyword(word) for word in _TOLD)
        if not told and not _QUIET.search(module.source) and _is_of_all(module, call):
            yield Hit(call.node.func, {"name": call.text, "number": "as many runs as ranks"})
    if not any(_NOTES.fullmatch(call.method) and is_on_all(module, call.place) for call in module.calls):
        return
    for call in module.methods("SummaryWriter"):
        known = call.name.startswith(("torch.utils.tensorboard", "tensorboardX", "?")) or call.text == "SummaryWriter"
        if known and "SummaryWriter" not in module.top.functions and _is_of_all(module, call):
            yield Hit(call.node.func, {"name": text_of(call.node.func), "number": "as many curves as ranks"})


def _is_of_all(module: Module, call: Call) -> bool:
    # a namespace of neptune for the numbers of the machine parts no runs
    monitored = call.keyword("monitoring_namespace")
    parts = [part for part in call.given if monitored is None or part is not monitored.value]
    alike = not any(has_rank(module, part, call.place.scope) for part in parts)
    return alike and is_on_all(module, call.place) and (not parts or is_alike(module, call, parts[0]))


@Rule(
    "RW506", "save-without-barrier", "warning", "medium",
    message="other ranks may read {name} before the main rank has written it: put a barrier between them",
    why="Only the main rank writes. The others run ahead and find no file, or half of one.",
    example=HEAD + """
 def reload(net, path):
     model = DDP(net)
     if dist.get_rank() == 0:
         torch.save(model.module.state_dict(), path)
+    dist.barrier()
     model.module.load_state_dict(torch.load(path, map_location="cpu"))
""",
    ignore="something between them waits for all ranks.",
)  # fmt: skip
def save_without_barrier(module: Module) -> Iterator[Hit]:
    """A file that the main rank alone writes and all read behind it: here, or in functions that are called here."""
    if not is_distributed(module) or has_framework(module):
        return
    words = ("f", "filename", "pretrained_model_name_or_path")
    loads = [*module.named("torch.load", "safetensors.torch.load_file"), *module.methods("from_pretrained")]
    paths = ((call, path) for call in loads for word in words if (path := call.argument(word, 0)) is not None)
    reads = [each for load, path in paths for each in _lifted(module, load, path)]
    found: set[Call] = set()
    for save, path in writes(module):
        for wrote in _lifted(module, save, path):
            for read in reads if "main" in {wrote.at.place.side, save.place.side} else ():
                behind = read.at.place.scope is wrote.at.place.scope and position(read.at.node) > position(
                    wrote.at.node
                )
                looped = wrote.at.place.loops[: len(read.at.place.loops)] == read.at.place.loops
                alone = read.at.place.side or read.call.place.side or read.call in found
                same = behind and looped and not alone and ast.dump(read.path) == ast.dump(wrote.path)
                if same and not _waits_between(module, wrote, read):
                    found.add(read.call)
                    yield Hit(read.call.node.func, {"name": module.text(path)})
    asking = [call for call in module.calls if call.node.keywords and call.keyword("download")]
    for call in asking:
        told = call.argument("download")
        above = (each for each in call.place.scope.calls if position(each.node) < position(call.node))
        waited = any(each.place.side == "other" and _WAITS.search(each.method) for each in above)
        if told is None or call.place.side or call.place.withs or waited:
            continue
        first = (each for each in asking if each.text == call.text and each.place.scope is call.place.scope)
        first = (each for each in first if each.place.side == "main" and position(each.node) < position(call.node))
        alone = side_of(told, module.lookup(call.place.scope)) == "main"
        if alone or any(
            is_const(each.argument("download"), True)
            and not _waits_between(module, _Use(each, each, told), _Use(call, call, told))
            for each in first
        ):
            yield Hit(call.node, {"name": f"what {call.text} loads"})


@dataclass(frozen=True, slots=True)
class _Use:
    """A call that writes or reads a path, and the call by which the function in question comes to it, or itself."""

    call: Call
    at: Call
    path: ast.expr


def _lifted(module: Module, call: Call, path: ast.expr) -> Iterator[_Use]:
    """Yield a use of a path where it stands, and where its function is called, if the path means the same there."""
    yield _Use(call, call, path)
    roots, scope = {text.partition(".")[0] for text in texts_in(path)}, call.place.scope
    if scope.is_function and not roots & {*scope.params[1:], *scope.bindings}:
        yield from (_Use(call, each, path) for each in module.callers(scope))


_WAITS = re.compile(r"barrier|wait|sync|backward|train|broadcast|reduce|gather|destroy", re.IGNORECASE)


def _waits_between(module: Module, first: _Use, second: _Use) -> bool:
    """Whether ranks wait for each other behind a write and before a read, also in the functions that hold them."""
    scope, last_ = first.at.place.scope, second.at.node
    between = [call for call in scope.calls if position(first.at.node) < position(call.node) < position(last_)]
    between += [inner for call in between for inner in module.inside(call)]
    behind = first.call.place.scope.calls if first.call is not first.at else []
    between += [call for call in behind if position(call.node) > position(first.call.node)]
    before = second.call.place.scope.calls if second.call is not second.at else []
    between += [call for call in before if position(call.node) < position(second.call.node)]
    return any(_WAITS.search(call.method) for call in between)


_WRITES = frozenset(
    "dump save savez savez_compressed save_to_disk to_csv to_parquet to_pickle to_json to_feather write_text "
    "write_bytes extractall urlretrieve download_url download save_file write_table memmap".split()
)
_FIRST = re.compile(r"first|zero|main|master|lock|barrier", re.IGNORECASE)


@Rule(
    "RW115", "prepared-by-all", "warning", "medium",
    message="every rank finds {path} missing and writes it at the same time; others read it half written",
    why="All ranks run the same lines. Let one rank write, put a barrier behind it, and let all read.",
    example=HEAD + """
 import os
 import pickle

 def load(path, make):
     dist.init_process_group("nccl")
-    if not os.path.exists(path):
+    if dist.get_rank() == 0 and not os.path.exists(path):
         with open(path, "wb") as file:
             pickle.dump(make(), file)
+    dist.barrier()
     with open(path, "rb") as file:
         return pickle.load(file)
""",
    ignore="the file is written whole or not at all, or was made before the job starts.",
)  # fmt: skip
def prepared_by_all(module: Module) -> Iterator[Hit]:
    """`if not exists(path):` around what writes, on every rank."""
    if not (is_distributed(module) or runs_on_several(module)):
        return
    for branch in module.branches:
        missing = missing_file(branch)
        inside = [call for call in module.calls if branch in call.place.branches] if missing is not None else []
        found = [call for call in inside if _writes(call)]
        if missing is None or not found or any(_FIRST.search(call.method) for call in inside):
            continue
        path = missing.args[0] if missing.args else missing.func
        if is_on_all(module, found[0].place) and is_alike(module, found[0], path):
            yield Hit(found[0].node, {"path": ast.unparse(path)})
    loaded = {call.text for call in module.calls if call.place.side == "main"}
    for call in module.calls:
        if call.text in loaded or not is_const(call.argument("download"), True):
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
