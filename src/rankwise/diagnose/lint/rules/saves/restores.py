"""RW504, RW505: how what was saved comes back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import is_own_file, starts_ranks
from rankwise.diagnose.lint.analysis.facts import (
    RANKS,
    guarded_place,
    is_before_ranks,
    loops_around,
    loops_of_epochs,
    on_both_sides,
    sees_one_gpu,
    uses_cuda,
    with_argument,
)
from rankwise.diagnose.lint.analysis.guards import is_mode_test
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.values import is_on_cpu
from rankwise.diagnose.lint.analysis.wrapped import known_wraps, sees, wraps
from rankwise.diagnose.lint.record import HEAD, Fix, Hit, Rule

# what gives each rank a GPU of its own without a word about CUDA in the script
_LIBRARIES = ("accelerate.Accelerator", "deepspeed.initialize", "horovod.torch.init", "lightning.Fabric")

_DATA = re.compile(r"(data|dataset|set|loader)$", re.IGNORECASE)
_DATA_PATH = re.compile(r"(^|_)(data|dataset|features?|samples)(_|$)", re.IGNORECASE)


@Rule(
    "RW504", "load-without-map-location", "warning", "high",
    message="torch.load {how} puts every rank's copy on {gpu}",
    why="Tensors come back to the device they were saved from. All ranks then fill GPU 0 until it is out of memory.",
    example=HEAD + """
 def resume(net, path):
     model = DDP(net.cuda())
-    model.load_state_dict(torch.load(path))
+    model.load_state_dict(torch.load(path, map_location="cpu"))
""",
    ignore="the file holds nothing that was on a GPU.",
    fix="safe",
)  # fmt: skip
def load_without_map_location(module: Module) -> Iterator[Hit]:
    """torch.load(path) in a file that starts ranks or wraps a model, and uses CUDA; of a state, if a library starts them."""
    started = starts_ranks(module) and uses_cuda(module)
    if not started and not module.has_named(*_LIBRARIES):
        return
    for call in module.named("torch.load"):
        if (not started and not _is_state(module, call)) or is_before_ranks(module, call.place.scope):
            continue
        data = bool(call.place.targets) and all(_DATA.search(text_of(target)) for target in call.place.targets)
        path = call.argument("f", 0)
        data |= isinstance(path, ast.Name | ast.Attribute) and _DATA_PATH.search(last(text_of(path))) is not None
        bases = [base for scope in call.place.scope.chain() for base in scope.bases]
        data |= any(text_of(base).endswith("Dataset") for base in bases)
        if data and not _is_state(module, call):
            continue
        given = call.argument("map_location", 1)
        # `if is_main_process:` with an imported function holds on every rank
        tests = (branch.test for branch in call.place.branches)
        always = any(isinstance(test, ast.Name) and module.name_of(test) for test in tests)
        one_rank = call.place.side is not None and not always
        if call.is_open or one_rank or _is_of_cpu(module, call) or is_own_file(module, call, path):
            continue
        if given is not None:
            if _is_one_gpu(module, given, call) and not sees_one_gpu(module):
                yield Hit(given, {"how": f"with map_location={module.text(given)}", "gpu": "one GPU"})
            continue
        values = {"how": "without map_location", "gpu": "the GPU that saved it, usually GPU 0"}
        fix = Fix('add map_location="cpu"', (with_argument(module, call, 'map_location="cpu"'),))
        yield Hit(call.node.func, values, fix)


def _is_of_cpu(module: Module, call: Call) -> bool:
    """Whether this file saves under that path itself, and nothing but what was never on a GPU."""
    path = call.argument("f", 0)
    saves = [
        (save.argument("obj", 0), save.place.scope)
        for save in module.named("torch.save")
        if path is not None and (other := save.argument("f", 1)) is not None and ast.dump(other) == ast.dump(path)
    ]
    return bool(saves) and all(_is_made_on_cpu(module, saved, scope) for saved, scope in saves)


def _is_made_on_cpu(module: Module, node: ast.expr | None, scope: Scope) -> bool:
    shown = module.value(node, scope)
    listed = shown.values if isinstance(shown, ast.Dict) else getattr(shown, "elts", None)
    if listed is not None:
        return all(isinstance(part, ast.Constant) or is_on_cpu(module, part, scope) for part in listed)
    return is_on_cpu(module, node, scope)


def _is_one_gpu(module: Module, given: ast.expr, call: Call) -> bool:
    """Whether map_location is "cuda:0", by itself or by a variable, in what all ranks run."""
    shown = module.value(given, call.place.scope)
    fixed = isinstance(shown, ast.Constant) and re.fullmatch(r"cuda:\d+", str(shown.value)) is not None
    known = given is shown or not isinstance(given, ast.Attribute)
    return fixed and known and not any(is_mode_test(branch.test) for branch in call.place.branches)


def _is_state(module: Module, call: Call) -> bool:
    """Whether what is loaded is given to load_state_dict."""
    names = {text_of(target) for target in call.place.targets}
    loads = [found for found in module.methods("load_state_dict") if found.place.scope is call.place.scope]
    used = (part for found in loads for part in ast.walk(found.node))
    return any(part is call.node or (isinstance(part, ast.expr) and text_of(part) in names) for part in used)


@Rule(
    "RW505", "load-on-one-rank", "error", "high",
    message="{name} is loaded on {ranks} only: from here on the ranks train different models",
    why="DDP makes the models equal once, when it wraps them; optimizers it never does. What is loaded later must be loaded on "
    "every rank.",
    example=HEAD + """
 def resume(net, path):
     model = DDP(net)
-    if dist.get_rank() == 0:
-        model.load_state_dict(torch.load(path, map_location="cpu"))
+    model.load_state_dict(torch.load(path, map_location="cpu"))
""",
    ignore="it is broadcast afterwards, or used on that rank alone.",
)  # fmt: skip
def load_on_one_rank(module: Module) -> Iterator[Hit]:
    """load_state_dict under a test of the rank, of a wrapped model or an optimizer."""
    known = known_wraps(module)
    broadcasts = [*module.methods("broadcast", "broadcast_object_list", "broadcast_parameters")]
    broadcasts = [each for each in broadcasts if not _sends_number(module, each)]
    for call in module.methods("load_state_dict"):
        place = guarded_place(module, call.place)
        named = (each for each in known if call.base in {each.text, f"{each.text}.module"})
        wrap = next((each for each in named if sees(module, each, call)), None)
        # something behind it, or in another function, may broadcast what was loaded
        sent = [
            each
            for each in broadcasts
            if each.place.scope is not call.place.scope or position(each.node) > position(call.node)
        ]
        if place is None or sent:
            continue
        late = wrap is not None and (
            wrap.place.scope is not place.scope or position(place.stmt) > position(wrap.call.node)
        )
        own = place.scope.exits
        loads = re.search("load|resume|restore", place.scope.name) is not None  # its callers go on with what it loads
        # or with what it gives on the main rank, and with another value elsewhere
        gives = {found.side for found in own if getattr(found.stmt, "value", None) is not None}
        exits = not loads and any(found.side == place.side for found in own) and len(gives) < 2
        late = late or (bool(wraps(module)) and re.search(r"optim|sched|^(self\.)?opt$", call.base.lower()) is not None)
        # all loops that train stand above it: what is loaded is only tested, or shown
        loops = [loop for loop in loops_of_epochs(module) if loops_around(module)[loop][0] is place.scope]
        behind = bool(loops) and all((loop.end_lineno or 0) < place.stmt.lineno for loop in loops)
        excused = exits or on_both_sides(place.guard, call.method) or behind
        if late and not excused:
            values = {"name": call.base, "ranks": RANKS[place.side or "main"]}
            yield Hit(call.node if place is call.place else place.stmt, values)


_NUMBERS = frozenset(f"torch.{name}" for name in "tensor zeros ones empty full LongTensor IntTensor".split())


def _sends_number(module: Module, call: Call) -> bool:
    """Whether a broadcast sends a small tensor, or a list of one number, that was made for it: the epoch, not weights."""
    given = call.node.args[0] if call.node.args else None
    text = text_of(given) if isinstance(given, ast.Name | ast.Attribute) else ""
    bound = [found.value for found in module.bindings_of(text, call.place.scope)] if text else [given]
    if call.method == "broadcast_object_list":
        numbers = r"\[\s*(\w+\.)*\w*(epoch|step|best|iter|loss|acc|num|count)\w*(, [^\]]*)?\]"
        return bool(bound) and all(each is not None and re.fullmatch(numbers, ast.unparse(each)) for each in bound)
    return bool(bound) and all(module.made_by(each) in _NUMBERS for each in bound)
