"""RW316, RW506: what ranks open or read without regard to each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.diagnose.lint.analysis.effects import has_rank, is_alike, is_on_all, runs_ranks
from rankwise.diagnose.lint.analysis.facts import has_framework, is_const, is_distributed
from rankwise.diagnose.lint.analysis.guards import side_of
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


_RUNS = ("wandb.init", "mlflow.start_run", "comet_ml.Experiment", "neptune.init_run", "swanlab.init", "trackio.init")
_TOLD = ("mode", "group", "disabled", "nested", "settings", "custom_run_id", "with_id")
_NOTES = re.compile(r"add_(scalars?|images?|histogram|text|figure|hparams|video|graph)")
_QUIET = re.compile(r"WANDB_(MODE|DISABLED)|wandb\.(setup|Settings)|offline|shared")


@rule(
    "RW316", "tracker-on-all-ranks", "warning", "medium",
    message="every rank opens a run of its own with {name}: {number} where one is meant",
    why="Each process that opens one sends its own numbers: world_size runs, or curves drawn over each other in one. Open it, and "
    "log, on the main rank.",
    wrong="import wandb\n" + _HEAD + """
def main(net, batches):
    dist.init_process_group("nccl")
    wandb.init(project="scan")
    model = DDP(net)
    for x in batches:
        wandb.log({"loss": model(x).mean().item()})
""",
    right="import wandb\n" + _HEAD + """
def main(net, batches):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    if rank == 0:
        wandb.init(project="scan")
    model = DDP(net)
    for x in batches:
        loss = model(x).mean().item()
        if rank == 0:
            wandb.log({"loss": loss})
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
    parts = [*call.node.args, *(word.value for word in call.node.keywords if word.arg != "monitoring_namespace")]
    alike = not any(has_rank(module, part, call.place.scope) for part in parts)
    return alike and is_on_all(module, call.place) and (not parts or is_alike(module, call, parts[0]))


@rule(
    "RW506", "save-without-barrier", "warning", "medium",
    message="other ranks may read {name} before the main rank has written it: put a barrier between them",
    why="Only the main rank writes. The others run ahead and find no file, or half of one.",
    wrong=_HEAD + """
def reload(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    model.module.load_state_dict(torch.load(path, map_location="cpu"))
""",
    right=_HEAD + """
def reload(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    model.module.load_state_dict(torch.load(path, map_location="cpu"))
""",
    ignore="something between them waits for all ranks.",
)  # fmt: skip
def save_without_barrier(module: Module) -> Iterator[Hit]:
    """A file that the main rank alone writes and all read behind it: here, or in functions that are called here."""
    if not is_distributed(module) or has_framework(module):
        return
    reads = [each for load, path in _reads(module) for each in _lifted(module, load, path)]
    found: set[Call] = set()
    for save, path in _saves(module):
        for wrote in _lifted(module, save, path):
            for read in reads if "main" in {wrote.place.side, save.place.side} else ():
                behind = read.place.scope is wrote.place.scope and position(read.at.node) > position(wrote.at.node)
                looped = wrote.place.loops[: len(read.place.loops)] == read.place.loops
                alone = read.place.side or read.call.place.side or read.call in found
                same = behind and looped and not alone and ast.dump(read.path) == ast.dump(wrote.path)
                if same and not _waits_between(module, wrote, read):
                    found.add(read.call)
                    yield Hit(read.call.node.func, {"name": module.text(path)})
    asking = [call for call in module.calls if call.node.keywords and call.keyword("download")]
    for call in asking:
        told = call.argument("download")
        if told is None or call.place.side or call.place.withs or _wait_for_main(call):
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

    @property
    def place(self) -> Place:
        return self.at.place


def _saves(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    for call, word, index in (
        *((each, "f", 1) for each in module.named("torch.save")),
        *((each, "filename", 1) for each in module.named("safetensors.torch.save_file")),
        *((each, "save_directory", 0) for each in module.methods("save_pretrained")),
    ):
        path = call.argument(word, index)
        if path is not None:
            yield call, path


def _reads(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    for call, word in (
        *((each, "f") for each in module.named("torch.load")),
        *((each, "filename") for each in module.named("safetensors.torch.load_file")),
        *((each, "pretrained_model_name_or_path") for each in module.methods("from_pretrained")),
    ):
        path = call.argument(word, 0)
        if path is not None:
            yield call, path


def _lifted(module: Module, call: Call, path: ast.expr) -> Iterator[_Use]:
    """Yield a use of a path where it stands, and where its function is called, if the path means the same there."""
    yield _Use(call, call, path)
    parts = [part for part in ast.walk(path) if isinstance(part, ast.Name | ast.Attribute)]
    roots = {text_of(part).partition(".")[0] for part in parts}
    held = any(root in call.place.scope.params[1:] or root in call.place.scope.bindings for root in roots)
    if call.place.scope.is_function and not held:
        yield from (_Use(call, each, path) for each in module.callers(call.place.scope))


_WAITS = re.compile(r"barrier|wait|sync|backward|train|broadcast|reduce|gather|destroy", re.IGNORECASE)


def _waits_between(module: Module, first: _Use, second: _Use) -> bool:
    """Whether ranks wait for each other behind a write and before a read, also in the functions that hold them."""
    scope, last_ = first.place.scope, second.at.node
    between = [call for call in scope.calls if position(first.at.node) < position(call.node) < position(last_)]
    between += [inner for call in between for inner in getattr(module.local_function(call), "calls", ())]
    if first.call is not first.at:
        own = first.call.place.scope.calls
        between += [call for call in own if position(call.node) > position(first.call.node)]
    if second.call is not second.at:
        own = second.call.place.scope.calls
        between += [call for call in own if position(call.node) < position(second.call.node)]
    return any(_WAITS.search(call.method) for call in between)


def _wait_for_main(call: Call) -> bool:
    """Whether the other ranks wait for the main one above a call."""
    above = (each for each in call.place.scope.calls if position(each.node) < position(call.node))
    return any(each.place.side == "other" and _WAITS.search(each.method) for each in above)
