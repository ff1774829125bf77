"""RW316: runs of trackers that each rank opens as if it were alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import has_rank, is_alike, is_on_all, runs_ranks
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call
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
