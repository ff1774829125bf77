"""RW209 to RW219: devices, kinds of modules, and libraries around a model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.collective_calls import objects_over_nccl
from rankwise.diagnose.lint.analysis.facts import (
    GROUP,
    calls_framework,
    has_framework,
    is_const,
    runs_alone,
    spawns,
)
from rankwise.diagnose.lint.analysis.guards import is_mode_test
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, last, receiver, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule


@Rule(
    "RW209", "find-unused-always", "warning", "low",
    message="find_unused_parameters=True walks the graph after every forward pass: is a parameter really unused?",
    why="It costs time in each step. It is needed where some parameters get no gradient in some step; DDP warns after the first "
    "step if there are none. static_graph=True is cheaper where they are always the same.",
    example=HEAD + """
 def prepare(net):
-    return DDP(net, find_unused_parameters=True)
+    return DDP(net)
""",
    ignore="parts of the model are left out in some steps.",
    fix="unsafe",
)  # fmt: skip
def find_unused_always(module: Module) -> Iterator[Hit]:
    """The literal True."""
    for wrap in wraps(module):
        word = wrap.call.keyword("find_unused_parameters")
        if word is not None and is_const(word.value, True):
            edit = Edit(*module.span(word.value), "False")
            yield Hit(word, {}, Fix("switch it off", (edit,), safe=False))


@Rule(
    "RW212", "global-rank-as-device", "warning", "medium",
    message="the global rank {text} chooses the GPU: on a second node there is no device of that number",
    why="Ranks count over all nodes, GPUs over one. LOCAL_RANK is the number on the node.",
    example="+import os\n" + HEAD + """
 def main(net):
     dist.init_process_group("nccl")
-    rank = dist.get_rank()
-    torch.cuda.set_device(rank)
-    return DDP(net.cuda(), device_ids=[rank])
+    local_rank = int(os.environ["LOCAL_RANK"])
+    torch.cuda.set_device(local_rank)
+    return DDP(net.cuda(), device_ids=[local_rank])
""",
    ignore="there is one node, and will be.",
)  # fmt: skip
def global_rank_as_device(module: Module) -> Iterator[Hit]:
    """set_device(dist.get_rank()), or a variable that was bound to it."""
    if _stays_on_one_node(module):
        return
    if named := [*_chosen_by_global_rank(module)]:
        yield from named
        return
    for call in module.methods("to", "cuda"):  # `device = dist.get_rank()` ... `model.to(device)`
        index = call.argument("device", 0)
        if isinstance(index, ast.Name) and _is_global_rank(module, index, call.place.scope):
            yield Hit(call.node, {"text": module.text(index)})
            return


def _chosen_by_global_rank(module: Module) -> Iterator[Hit]:
    for call in module.named("torch.cuda.set_device", "torch.device"):
        index = call.argument("device", 0) if call.method == "set_device" else call.argument("index", 1)
        if call.method == "device" and index is None and call.node.args:
            written = call.node.args[0]  # f"cuda:{rank}", also as one side of a choice
            index = written.body if isinstance(written, ast.IfExp) else written
            index = index if isinstance(index, ast.JoinedStr) else None
        if index is not None and _is_global_rank(module, index, call.place.scope):
            yield Hit(call.node, {"text": module.text(index)})
    for wrap in wraps(module):
        word = wrap.call.keyword("device_ids")
        ids = word.value.body if word is not None and isinstance(word.value, ast.IfExp) else word and word.value
        for index in ids.elts if isinstance(ids, ast.List | ast.Tuple) else ():
            if _is_global_rank(module, index, wrap.place.scope):
                yield Hit(index, {"text": module.text(index)})


def _stays_on_one_node(module: Module) -> bool:
    """Whether the file spawns its ranks and lets them meet on localhost: the rank is the local rank then."""
    # a notebook's ranks are forks of one process, unless it says that there are more nodes
    notebooks = list(module.methods("notebook_launcher"))
    if notebooks and not any(call.keyword("num_nodes") or call.is_open for call in notebooks):
        return True
    spawned = bool(spawns(module)) or module.has_call("Process")
    told = "MASTER_ADDR" in module.texts and bool(module.texts & {"localhost", "127.0.0.1"})
    return spawned and (told or any(re.match(r"tcp://(localhost|127\.0\.0\.1)\b", text) for text in module.texts))


def _is_global_rank(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    if isinstance(node, ast.JoinedStr):  # f"cuda:{rank}"
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return "cuda" in ast.unparse(node) and len(parts) == 1 and _is_global_rank(module, parts[0], scope, depth)
    if isinstance(node, ast.Name | ast.Attribute):
        found = list(module.bindings_of(text_of(node), scope))
        if not found and isinstance(node, ast.Attribute):  # a field of a configuration that says which rank it is
            return _names_global_rank(module, node)
        if not found and depth and text_of(node) in scope.params and module.given(scope, text_of(node)):
            return module.always_given(scope, node, lambda part, at: _is_global_rank(module, part, at, depth - 1))
        if not found or any(each.shown is None for each in found):
            # a parameter that is called rank, beside one for the rank on the node
            beside = not found and any("local" in name for name in scope.params if name != text_of(node))
            return beside and text_of(node) in {"rank", "global_rank"} and text_of(node) in scope.params
        if len(found) > 1 or isinstance(found[0].shown, ast.Name):  # another name for it, or one that is read twice
            # `rank = 0` stands where there is one process
            values = [(each.shown, each.place.scope) for each in found if each.shown and not is_const(each.shown, 0)]
            return bool(depth and values) and all(_is_global_rank(module, value, at, depth - 1) for value, at in values)
        node, scope = found[0].shown, found[0].place.scope  # type: ignore[assignment]
    if isinstance(node, ast.Call) and module.made_by(node) == "torch.distributed.get_rank":
        return not node.args and not node.keywords
    if isinstance(node, ast.IfExp):
        return bool(depth) and _is_global_rank(module, node.body, scope, depth - 1)  # `x = x if x else ...` has no end
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # node * gpus_per_node + local_rank
        return "local" in text.lower() and re.search(r"node.*\*", text.lower()) is not None
    return (
        re.fullmatch(r"int\(os\.(environ(\.get\(|\[)|getenv\()'(RANK|SLURM_PROCID)'(\)|\]|, .*\))\)?", text) is not None
    )


def _names_global_rank(module: Module, node: ast.Attribute) -> bool:
    """Whether a field is called rank, and nothing here spawns ranks, sets the field or knows of a local one."""
    if node.attr not in {"rank", "global_rank", "world_rank"} or module.has_call("spawn", "start_processes", "Process"):
        return False
    local = any("local" in name.lower() for name in module.attributes)
    return not local and not any(found.text.endswith(f".{node.attr}") for found in module.bindings)


@Rule(
    "RW213", "no-set-device", "warning", "medium",
    message="nothing chooses this rank's GPU: {text} is GPU 0 on every rank",
    why="Without torch.cuda.set_device(local_rank) or an index, `cuda` means the first GPU for all ranks of a node.",
    example=HEAD + """
-def main(net):
+def main(net, local_rank):
+    torch.cuda.set_device(local_rank)
     dist.init_process_group("nccl")
     return DDP(net.cuda())
""",
    ignore="each process sees one GPU only, by CUDA_VISIBLE_DEVICES of its launcher.",
)  # fmt: skip
def no_set_device(module: Module) -> Iterator[Hit]:
    """A model moved to a device without index and wrapped, or objects over NCCL, and no word about devices in the file.

    Or such a move before a library chooses the device of the rank.
    """
    yield from _before_library(module)
    if GROUP not in module.by_name or calls_framework(module) or runs_alone(module):
        return
    # a context manager that nobody enters
    for call in module.named("torch.accelerator.device_index", "torch.cuda.device"):
        if call.is_alone and not module.has_call("set_device", "set_device_index"):
            yield Hit(call.node, {"text": f"{call.text}() is for `with`, and what follows"})
    if _tells_device(module):
        return
    # tensor.cuda().to(rank): by way of GPU 0
    for call in module.methods("to"):
        inner = receiver(call.node)
        if isinstance(inner, ast.Call) and called(inner) == "cuda" and not inner.args:
            yield Hit(inner, {"text": ".cuda()"})
    if moved := _bare_move(module):
        yield moved
    elif objects := objects_over_nccl(module):
        yield Hit(objects[0].node, {"text": f"the buffer of {last(objects[0].name)}"})


def _before_library(module: Module) -> Iterator[Hit]:
    """Yield what moves a model above the call of a library that chooses the GPU of this rank."""
    for chooser in () if _tells_device(module) else module.named("accelerate.Accelerator", "deepspeed.initialize"):
        above = [call for call in chooser.place.scope.calls if position(call.node) < position(chooser.node)]
        moved = [call for call in above if _moves_bare(module, call) and last(call.base) in {"model", "net"}]
        yield from (_moving(call) for call in moved[:1])


def _bare_move(module: Module) -> Hit | None:
    """A model moved to a device without index, in a file that wraps one."""
    if has_framework(module) or not wraps(module):
        return None
    models = {name for wrap in wraps(module) for name in wrap.names} | {"model", "net"}
    first: Hit | None = None
    for call in module.methods("cuda", "to"):
        moved = bool(models & {call.base, *map(text_of, call.place.targets)})
        whole = not call.place.branches or moved
        if (
            _moves_bare(module, call)
            and whole
            and (moved or not any(wrap.call.keyword("device_ids") for wrap in wraps(module)))
        ):
            if moved:  # rather than a batch
                return _moving(call)
            first = first or _moving(call)
    return first


def _moving(call: Call) -> Hit:
    return Hit(call.node, {"text": f".{call.method}({'' if call.method == 'cuda' else repr('cuda')})"})


def _moves_bare(module: Module, call: Call) -> bool:
    """Whether a call moves something to a GPU without index, under no test of how the script runs."""
    given = call.node.args[0] if call.node.args else None
    bare = call.method == "cuda" and not call.given
    bare |= call.method == "to" and _is_bare(module.value(given, call.place.scope))
    # a test of whether there is a GPU, not of how the script runs
    tests = [branch.test for branch in call.place.branches] if bare else []
    return bare and all("is_available" in ast.unparse(test) and not is_mode_test(test) for test in tests)


def _is_bare(node: ast.expr | None) -> bool:
    """Whether a device is "cuda", or torch.device("cuda"), also as the first side of a choice."""
    if isinstance(node, ast.IfExp):
        return _is_bare(node.body) and re.search("is_available|cuda|gpu", ast.unparse(node.test)) is not None
    if isinstance(node, ast.Call) and called(node) == "device" and len(node.args) == 1:
        return not node.keywords and _is_bare(node.args[0])
    return isinstance(node, ast.Constant) and node.value == "cuda"


def _tells_device(module: Module) -> bool:
    """Whether the file chooses a GPU in any way. A list of several visible GPUs chooses none."""
    several = any(re.fullmatch(r"\d+( ?, ?\d+)+", text) for text in module.texts)
    groups = module.named(GROUP)
    return (
        any("device" in call.method and call.method not in {"device", "device_count"} for call in module.calls)
        or any(call.keyword("device_id") for call in groups)
        or any("cuda:" in text or (text == "CUDA_VISIBLE_DEVICES" and not several) for text in module.texts)
        or any(call.node.args for call in module.methods("cuda"))
        or any(len(call.node.args) > 1 or call.node.keywords for call in module.named("torch.device"))
    )


@Rule(
    "RW214", "batchnorm-not-synced", "info", "medium",
    message="BatchNorm sees the batch of one rank: convert_sync_batchnorm, if that batch is small",
    why="Parameters stay equal on all ranks; only the statistics are those of a rank, and rank 0's are kept. It is a matter of "
    "quality below about 16 samples per rank.",
    example=HEAD + """
 def prepare():
     net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
-    return DDP(net)
+    return DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(net))
""",
    ignore="the batch of a rank is large.",
)  # fmt: skip
def batchnorm_not_synced(module: Module) -> Iterator[Hit]:
    """BatchNorm layers and a wrap in one file, no conversion."""
    layers = list(module.named(*(f"torch.nn.BatchNorm{n}d" for n in (1, 2, 3))))
    if layers and wraps(module) and not module.has_call("convert_sync_batchnorm", "convert_syncbn_model"):
        yield Hit(wraps(module)[0].call.node.func)


@Rule(
    "RW215", "buffers-not-synced", "info", "medium",
    message="broadcast_buffers=False: running statistics differ between ranks, and a checkpoint holds those of one",
    why="Buffers are broadcast before each forward pass by default. (2.13 calls the argument forward_sync_buffers.)",
    example=HEAD + "\n def prepare(net):\n-    return DDP(net, broadcast_buffers=False)\n+    return DDP(net)\n",
    ignore="the model has no buffers that matter.",
)  # fmt: skip
def buffers_not_synced(module: Module) -> Iterator[Hit]:
    """The literal False."""
    for wrap in wraps(module):
        word = wrap.call.keyword("broadcast_buffers") or wrap.call.keyword("forward_sync_buffers")
        if word is not None and is_const(word.value, False):
            yield Hit(word)


@Rule(
    "RW218", "bucket-view-hint", "info", "low",
    message="gradient_as_bucket_view=True would save the memory of one copy of the gradients",
    why="Gradients then are views of the buckets that are reduced.",
    example=HEAD + "\n def prepare(net):\n-    return DDP(net)\n+    return DDP(net, gradient_as_bucket_view=True)\n",
    ignore="something detaches or replaces .grad in place.",
)  # fmt: skip
def bucket_view_hint(module: Module) -> Iterator[Hit]:
    """The argument is absent."""
    for wrap in wraps(module):
        told = wrap.call.is_open or wrap.call.keyword("gradient_as_bucket_view")
        if wrap.call.name.startswith("torch.") and not told:
            yield Hit(wrap.call.node.func)
