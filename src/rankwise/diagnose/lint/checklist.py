"""A well-known guide's 84 statements: what is so, what looks at each, and what a script shows of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rankwise.diagnose.lint.record import Finding

Verdict = Literal["true", "partly", "wrong"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement.

    Attributes:
        number: from 1, in the order of the guide.
        says: the statement, in our words.
        verdict: whether it holds for PyTorch 2.8 to 2.13.
        truth: what is so; empty where the statement says it.
        covers: what looks at it: a code of a rule, `guard:CHECK`, `doctor:CHECK`, `command:NAME` or `page:NAME`.
    """

    number: int
    says: str
    verdict: Verdict
    truth: str
    covers: tuple[str, ...]


# as few lines as they need, so that the list reads as a list
_LISTED: tuple[tuple[str, Verdict, str, str], ...] = (
    ("use DDP, never DataParallel", "partly", "DataParallel still works and warns of nothing", "RW210"),
    ("start with torchrun", "true",
     "a c10d rendezvous is the advised form on several nodes", "RW605 RW604 RW612 RW613 page:launch"),
    ("the launcher sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*", "true",
     "LOCAL_WORLD_SIZE, GROUP_RANK and others, too", "command:doctor command:env page:env"),
    ("read LOCAL_RANK out of the environment", "partly",
     "under plain python it is not set: give a default", "RW606 RW604"),
    ("start the group with NCCL", "partly",
     "give a time limit, and the backend of the device", "RW611 doctor:collectives"),
    ("choose the GPU by the local rank", "true", "", "RW213 RW212 guard:devices"),
    ("start the group before any CUDA call", "wrong", "choose the device first, then start the group", "RW219"),
    ("move the model before the wrap, or it raises", "partly",
     "the order is right; afterwards gradients silently stop being added up", "RW201 guard:gradients"),
    ("device_ids and output_device, one each", "partly", "output_device adds nothing; several ids raise", "RW208"),
    ("without a sampler all ranks see the same data", "partly",
     "only with equal seeds; else an epoch is world_size times as long", "RW101 RW106 guard:samples guard:loader"),
    ("tell the sampler ranks and rank", "partly",
     "it asks the group itself; a local rank is wrong on two nodes", "RW105 RW107"),
    ("a sampler excludes shuffle", "true", "", "RW102"),
    ("tell the sampler the epoch", "true", "not needed where nothing is shuffled", "RW103 guard:samples"),
    ("workers, pinned memory, non-blocking copies", "partly",
     "a copy is non-blocking from pinned memory only", "RW112 RW109 command:profile"),
    ("move inputs and targets", "partly",
     "DDP moves the inputs of forward itself, so the target is what is forgotten", "RW305 guard:devices"),
    ("zero, forward, backward, step", "true", "", "RW309"),
    ("only the first rank logs", "partly", "its number is that of its own share", "RW310 page:metrics"),
    ("destroy the group at the end", "true", "", "RW609"),
    ("gradients are synchronised by themselves", "partly",
     "not through model.module, nor for parameters added or moved after the wrap", "RW206 RW205 RW207 guard:gradients"),
    ("gradients are summed, then divided", "partly", "divided first; the mean is the same", "page:losses"),
    ("plain BatchNorm makes models diverge", "wrong",
     "parameters stay equal; only running statistics differ between forward passes", "RW214 guard:parameters"),
    ("convert to SyncBatchNorm, then wrap", "true", "it raises on the CPU", "RW203"),
    ("SyncBatchNorm below 16 samples per GPU", "partly", "a rule of thumb", "RW214"),
    ("buffers are copied at the start of training", "wrong",
     "in each forward pass; dropout has no buffers", "RW204 RW215 guard:parameters"),
    ("keep buffers the same", "true", "", "RW215 guard:parameters"),
    ("ranks must build the same weights", "wrong",
     "the wrap copies those of rank 0", "guard:signature guard:parameters"),
    ("seed all ranks alike", "partly",
     "equal seeds give equal dropout and augmentation on all ranks", "RW111 guard:random"),
    ("all ranks load the checkpoint before the wrap", "partly",
     "needed for the optimizer; map_location keeps GPU 0 free", "RW504 RW505 page:checkpoint"),
    ("print where everything lies", "true", "cuda and cuda:0 are the same place", "guard:devices"),
    ("move the loss to the GPU", "partly", "only one that holds tensors, such as class weights", "RW306"),
    ("the target is forgotten on the CPU", "true", "see 15", "RW305"),
    ("never write cuda:0", "true",
     "but under --virtual-local-rank index 0 is right", "RW211 guard:devices doctor:one GPU for each rank"),
    ("move all layers", "true", "the wrap refuses mixed kinds of devices", "RW202"),
    ("profile with torch.profiler", "true", "", "command:profile"),
    ("look for the all-reduce in the trace", "partly", "its time includes waiting for slower ranks", "command:profile"),
    ("ten times as much compute as communication", "partly",
     "a rule of thumb; what is not hidden behind compute counts", "command:profile"),
    ("buckets of 25 MB, smaller on slow networks", "partly",
     "the first is 1 MiB; try sizes instead of guessing", "command:profile"),
    ("gradients as views of buckets save memory", "true", "", "RW218"),
    ("ranks synchronise when the optimizer steps", "wrong", "in each backward pass", "page:checklist_shown"),
    ("no_sync for accumulation", "partly", "the forward pass has to be inside", "RW303 RW302 guard:reductions"),
    ("accumulate when memory is short", "partly",
     "micro-batches left over at the end of an epoch are never stepped", "RW304"),
    ("NCCL_TIMEOUT and other switches", "wrong",
     "no variable sets the time limit: timeout= of init_process_group does",
     "RW602 RW603 doctor:names of NCCL, gloo and torch"),
    ("%r in NCCL_DEBUG_FILE is the rank", "wrong",
     "only %h and %p are known: all ranks write one file", "RW602 doctor:NCCL_DEBUG_FILE"),
    ("NCCL_SOCKET_IFNAME names the interface", "partly",
     "it is a prefix; gloo has a variable of its own", "command:doctor"),
    ("InfiniBand settings by case", "partly", "read in NCCL's log what it chose", "RW603 command:doctor"),
    ("a table of expected speed-ups", "partly", "a rule of thumb: measure", "command:scaling"),
    ("four causes of imperfect scaling", "partly",
     "the batch size changes convergence, not throughput", "command:scaling command:profile"),
    ("large models scale, small ones do not", "partly", "a rule of thumb", "command:scaling"),
    ("a function that measures the speed-up", "wrong",
     "it wraps on one rank and hangs, and never waits for the GPU", "RW401 RW307 command:scaling"),
    ("the node is the rank over the GPUs per node", "partly",
     "GROUP_RANK says it, also where nodes differ", "RW610 RW212"),
    ("commands for a master and its workers", "true", "", "RW601 RW613 RW607"),
    ("ping and nc the master's port", "partly",
     "nothing listens there before the start; ping may be filtered", "doctor:all ranks meet"),
    ("sum the ranks by all_reduce as a test", "true", "with a time limit", "doctor:collectives"),
    ("read NCCL's log", "true", "", "command:doctor command:explain"),
    ("SyncBatchNorm is needed over nodes", "partly", "see 21", "RW214"),
    ("convert before moving", "partly", "before the wrap is what matters", "RW203"),
    ("find_unused_parameters costs time", "true", "DDP itself says when it is idle", "RW209 guard:unused"),
    ("less batch against running out of memory", "true",
     "look first whether two ranks share a GPU", "doctor:GPUs guard:devices"),
    ("signs of wrong conclusions", "true", "a verdict needs evidence", "command:doctor command:explain"),
    ("mixed precision from torch.cuda.amp", "partly", "deprecated: torch.amp", "RW308"),
    ("one GradScaler per rank", "true", "unscale before clipping", "RW301 guard:finite"),
    ("branches in forward need find_unused_parameters", "true", "also where ranks branch differently", "guard:unused"),
    ("activation checkpointing simply works", "partly", "with use_reentrant=False", "RW217"),
    ("save on one rank, unwrapped, then wait", "partly",
     "it is not atomic, and scheduler, scaler and position are missing", "RW501 RW502 RW503 RW506 page:checkpoint"),
    ("DDP has a timeout for mixed GPUs", "wrong", "TypeError: init_process_group has it", "RW204"),
    ("batches for the slowest GPU", "true", "", "command:profile"),
    ("ZeRO from FairScale", "wrong", "archived: torch has ZeroRedundancyOptimizer and fully_shard", "RW216"),
    ("when to shard the optimizer", "true", "", "page:scale"),
    ("first run plain python", "partly", "the guide's scripts fail so: see 4", "RW606 command:doctor"),
    ("then check the environment", "partly", "the line that is given raises TypeError", "command:env command:doctor"),
    ("then the start of the group", "true", "with a time limit", "doctor:collectives"),
    ("then the devices", "partly", "all parameters, not the first", "guard:devices"),
    ("then that gradients are synchronised", "wrong", "the code that is given never synchronises", "guard:gradients"),
    ("then the cost of communication", "wrong",
     "both clocks of the code that is given span the same", "command:profile"),
    ("no excuses: time, authority, effort", "true", "each check says pass, warn, fail or not run", "command:doctor"),
    ("no excuses: network, tuning, fewer GPUs", "true", "NCCL is looked at last", "command:doctor"),
    ("signs in set-up and synchronisation", "true",
     "see 1, 8, 10, 13, 21, 24, 26, 32, 57", "RW210 RW201 RW101 RW103 RW211 RW209"),
    ("signs in speed and debugging", "partly",
     "see 3, 29, 36, 40, 46, 48, 69", "RW303 guard:devices command:profile command:scaling"),
    ("signs on several nodes", "true", "see 44, 52, 53, 54", "doctor:all ranks meet doctor:collectives"),
    ("signs of pressure", "true", "see 75", "command:doctor"),
    ("six short checklists", "true", "this list", "page:checklist"),
    ("the final script averages the loss over ranks", "wrong", "it prints that of rank 0", "RW310 page:metrics"),
    ("drop_last against an uneven last batch", "wrong",
     "the sampler repeats samples; evaluation is biased by them", "RW110 guard:loader"),
    ("wait after saving", "partly", "once; a barrier per step is waste", "RW405 RW506"),
)  # fmt: skip

# names of doctor's checks hold blanks
_NEXT = re.compile(r" (?=RW\d|guard:|doctor:|command:|page:)")
CLAIMS = tuple(
    Claim(number, says, verdict, truth, tuple(_NEXT.split(covers)))
    for number, (says, verdict, truth, covers) in enumerate(_LISTED, 1)
)

_LOOKS = {
    "guard": "`Trainer(guard=...)` looks at it in a run: {}",
    "doctor": "`rankwise doctor`: {}",
    "command": "`rankwise {}`",
    "page": "docs/{}.md",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A statement, and what was found of it."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """Found, clear (its rules found nothing), or not visible: no rule looks at it."""
        if self.findings:
            return "found"
        return "clear" if any(name.startswith("RW") for name in self.claim.covers) else "not visible"

    @property
    def looks(self) -> tuple[str, ...]:
        """What looks at it beside the rules, in words."""
        named = (name.partition(":") for name in self.claim.covers if not name.startswith("RW"))
        return tuple(_LOOKS[kind].format(name) for kind, _, name in named)


def items_of(findings: Iterable[Finding]) -> list[Item]:
    """Return the checklist for the findings of a run with all rules."""
    found = list(findings)
    return [Item(claim, tuple(one for one in found if one.rule.code in claim.covers)) for claim in CLAIMS]


def checklist_text(items: Iterable[Item], output_format: str) -> str:
    """Return the list as text, a line or more per statement, or as JSON."""
    if output_format == "json":
        return json.dumps({"checklist": [_as_json(item) for item in items]}, indent=1)
    lines = []
    for item in items:
        claim = item.claim
        truth = f" ({claim.verdict}: {claim.truth})" if claim.truth else ""
        lines.append(f"{claim.number:2}  {item.state:11}  {claim.says}{truth}")
        lines += [f"    {one.file}:{one.line}: {one.rule.code} {one.rule.slug}" for one in item.findings]
        if item.state == "not visible":
            lines.append(f"    {'; '.join(item.looks)}")
    return "\n".join(lines)


def _as_json(item: Item) -> dict[str, object]:
    found = [{"file": one.file, "line": one.line, "code": one.rule.code} for one in item.findings]
    claim = item.claim
    return {
        "number": claim.number,
        "says": claim.says,
        "verdict": claim.verdict,
        "truth": claim.truth,
        "state": item.state,
        "findings": found,
        "looks": list(item.looks),
    }


_HEAD = """# A guide's 84 statements, and what looks at each

Made by `python docs/build_rules.py` from the records of `rankwise lint`; a test keeps both equal. The statements are
those of a widely read guide to DistributedDataParallel, in our words; "true" and the like are for PyTorch 2.8 to 2.13.
`rankwise lint --checklist PATH...` holds a script against them: *found* (with the places), *clear* (the rules about it
found nothing) or *not visible* from code, with what looks at it then. A rule that found nothing is no proof: see
[how often lint is right](lint_accuracy.md).

What is wrong is shown by [executed examples](checklist_shown.md), on two ranks.

| no. | statement of the guide | verdict | correction or addition | checked by |
|---|---|---|---|---|
"""


def checklist_page() -> str:
    """Return docs/checklist.md."""
    rows = []
    for claim in CLAIMS:
        looks = ", ".join(_linked(name) for name in claim.covers)
        rows.append(f"| {claim.number} | {claim.says} | {claim.verdict} | {claim.truth} | {looks} |")
    return _HEAD + "\n".join(rows) + "\n"


def _linked(name: str) -> str:
    kind, _, rest = name.partition(":")
    if not rest:
        return name
    if kind == "page":
        return f"[{rest}]({rest}.md)"
    return {"guard": f"[guard](guard.md) `{rest}`", "doctor": f"[doctor](doctor.md) *{rest}*"}.get(
        kind, f"`rankwise {rest}`"
    )
