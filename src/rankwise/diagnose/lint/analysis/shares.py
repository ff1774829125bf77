"""What belongs to one rank alone: loaders that give it a share, evaluations of one, and numbers that nothing joins."""

from __future__ import annotations

import ast
import re

from rankwise.diagnose.lint.analysis.facts import LOADER, SAMPLER, loops_around, training_loops
from rankwise.diagnose.lint.analysis.guards import is_mode_test
from rankwise.diagnose.lint.analysis.module import Module, once
from rankwise.diagnose.lint.analysis.names import called, last, names_in, receiver, text_of, texts_in
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Place, Scope, excludes
from rankwise.diagnose.lint.analysis.values import READERS, names_behind, names_of

_QUIET = re.compile(r"no_grad|inference_mode")
_REDUCES = re.compile(r"reduce|gather|sync|metric|^compute$|\.compute\(|evaluator", re.IGNORECASE)
_SHOWS = re.compile(r"^(log|print|write|track|save|init|format|display|plot|show|record|update|report)_")
_PLAIN = ("dict", "list", "defaultdict", "OrderedDict", "AverageMeter")
_NO_REDUCTION = re.compile(r"cuda\.synchronize$|convert_sync_batchnorm$|no_sync$|set_requires_gradient_sync$")
# what is asked of a dict or a list of numbers, or computes those of one batch
_PLAIN_METHOD = re.compile(r"(keys|values|items|get|append|extend)$|eval|calc|measure")
# a slice, or a range, from the rank in steps of the number of ranks
_STRIDE = re.compile(r"\[[\w.]*rank(\(\))?::|\brange\([\w.]*rank(\(\))?, ", re.IGNORECASE)
_PARTS = re.compile(r"train|split|phase|val\b|valid|eval|test", re.IGNORECASE)


def is_shared(module: Module, sampler: ast.expr | None, place: Place) -> bool:
    """Whether a loader's sampler gives each rank a share wherever there are several ranks."""
    bound: list[Binding] = []
    if isinstance(sampler, ast.Name | ast.Attribute):
        bound = list(module.bindings_of(text_of(sampler), place.scope))
    tests = [branch.test for found in bound for branch in found.place.branches if branch not in place.branches]
    shared, alone = False, False
    for value in [found.value for found in bound] or [sampler]:
        for part in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            # torch's, or one that says so in its name
            named = isinstance(part, ast.Call) and re.search(r"Distributed\w*Sampler$", text_of(part.func)) is not None
            shares = named or module.made_by(part) == SAMPLER
            shared, alone = shared or shares, alone or not shares
        tests += [value.test] if isinstance(value, ast.IfExp) else []
    # what decides is the way of running, not the part of the data
    return shared and not (alone and any(not is_mode_test(test) or _PARTS.search(ast.unparse(test)) for test in tests))


def gone_through(module: Module, loop: ast.stmt) -> set[str]:
    """Return the names that a loop goes through: ``for x in tqdm(loader)``, or ``next(batches)`` in its body."""
    names = names_in(loop.iter) if isinstance(loop, ast.For) else set()
    nexts = (call for call in module.methods("next") if loop in call.place.loops)
    names |= {name for call in nexts for part in call.node.args[:1] for name in names_in(part)}
    made = (found.value for found in module.bindings if last(found.text) in names)
    read = (value for value in made if called(value) in READERS)
    return names.union(*map(names_in, read))


def reduces(module: Module, scope: Scope, depth: int = 3, *, summed: bool = False) -> bool:
    """Whether a function adds up over the ranks: by itself, or in what it calls."""
    calls = (call for call in scope.calls if not summed or call.method != "compute" or call.node.args)
    return any(is_reduction(module, call, depth) for call in calls)  # metric.compute() adds up nobody else's sums


def is_reduction(module: Module, call: Call, depth: int = 3) -> bool:
    """Whether a call joins the numbers of all ranks: by itself, by its name, or in what it calls."""
    # a metric is made here, and asked further down
    if _NO_REDUCTION.search(call.text) or re.match(r"[A-Z]\w*Metrics?\w*$", call.method):
        return False
    # a function of one process: torch.gather, np.add.reduce
    if re.match(r"(torch(?!\.distributed)|numpy|sklearn)\b", call.name):
        return False
    found = module.scope_of(call) if depth else None
    if found is not None:
        return reduces(*found, depth - 1)
    if _REDUCES.search(call.method):
        return _SHOWS.search(call.method) is None
    if not re.search("metric|evaluator", call.base, re.IGNORECASE) or _PLAIN_METHOD.match(call.method):
        return False
    # a dict of numbers may be called metrics, too
    made = module.value(receiver(call.node), call.place.scope)
    return not isinstance(made, ast.Dict | ast.List) and called(made) not in _PLAIN


@once
def shared_loaders(module: Module) -> set[str]:
    """Return the names of loaders for evaluation that give each rank a share."""
    found: set[str] = set()
    for call in module.named(LOADER):
        data = module.value(call.argument("dataset", 0), call.place.scope)
        strided = data is not None and _STRIDE.search(ast.unparse(data)) is not None
        if strided or is_shared(module, call.argument("sampler", 3), call.place):
            found |= names_of(module, call)
    if "accelerate.Accelerator" in module.by_name:  # its prepare() shares loaders out by itself
        made = {name for loader in module.named(LOADER) for name in names_of(module, loader)}
        found |= {name for call in module.methods("prepare") for arg in call.node.args for name in names_in(arg) & made}
    return found - {"self", ""}


@once
def evaluations(module: Module) -> list[tuple[ast.For, Scope]]:
    """Return the loops over batches without a backward pass that run the model without gradients."""
    quiet: dict[ast.For, Scope] = {}
    scopes: dict[Scope, bool] = {}
    for place in (call.place for call in module.calls if call.place.loops):
        if place.scope not in scopes:
            scopes[place.scope] = _is_quiet(place.scope)
        loops = [loop for loop in place.loops if isinstance(loop, ast.For) and loop not in quiet]
        if loops and (scopes[place.scope] or any(_QUIET.search(text) for text in place.contexts)):
            quiet |= dict.fromkeys(loops, place.scope)
    trained = {loop for call in module.methods("backward", "step") for loop in call.place.loops}
    return [(loop, scope) for loop, scope in quiet.items() if loop not in trained]


def _is_quiet(scope: Scope) -> bool:
    """Whether a function makes no gradients, or has no backward pass and tells the model to evaluate."""
    told = any(call.method == "eval" and not call.node.args for call in scope.calls)
    return told or any(_QUIET.search(ast.unparse(each)) for each in getattr(scope.node, "decorator_list", ()))


def is_of_share(module: Module, loop: ast.stmt, scope: Scope) -> bool:
    """Whether a loop goes through a loader that gives each rank a share."""
    made = [module.call_of.get(part) for part in ast.walk(loop.iter)] if isinstance(loop, ast.For) else []  # type: ignore[call-overload]
    inline = [call for call in made if call is not None and call.name == LOADER]
    if any(is_shared(module, call.argument("sampler", 3), call.place) for call in inline):
        return True
    return bool(names_behind(module, gone_through(module, loop), scope) & shared_loaders(module))


# Numbers.

_FILLS = frozenset({"append", "extend", "update", "add"})
# an object that is told a number, and keeps or judges it
_JUDGES = re.compile(r"stop|early|patien|best|meter|monitor|history|plateau", re.IGNORECASE)
# what says by its name that all ranks have its value then
_JOINS = re.compile(r"broadcast|bcast|share|object_list|distributed|across|all_ranks|(^|_)dist(_|$)", re.IGNORECASE)
_DRAWS = re.compile(r"next(_\w+)?|get_batch|next_batch")
# what is asked of a batch and is the same on all ranks, as far as numbers of samples are
_SIZES = frozenset({"shape", "size", "device", "dtype", "dim", "ndim", "numel", "requires_grad"})


def is_own_at(module: Module, part: ast.expr, place: Place) -> bool:
    """Whether an expression is this rank's own where it stands: a name by what binds it there, or fills it."""
    if not is_own(module, part, place.scope):
        return False
    bound = place.scope.bindings.get(text_of(part), []) if isinstance(part, ast.Name | ast.Attribute) else []
    own = [found for found in bound if _makes_own(module, found)]
    return not own or any(not excludes(found.place, place) for found in own)


def is_own(module: Module, value: ast.AST | None, scope: Scope, depth: int = 3) -> bool:
    """Whether a value follows from this rank's own batches, and nothing joins it with those of the others."""
    own, stack = _own_names(module, scope, depth), [value]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name | ast.Attribute) and text_of(node).removeprefix("self.") in own:
            return True
        if isinstance(node, ast.Call):
            call = module.call_of.get(node)
            if call is None or _joins(module, call) or text_of(node.func) in {"len", "isinstance", "range", "type"}:
                continue
            target = module.local_function(call) if depth else None
            if target and any(is_own(module, end, target, depth - 1) for end in target.returned):
                return True
        nothing = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
        if node is not None and not nothing and getattr(node, "attr", "") not in _SIZES:
            stack.extend(ast.iter_child_nodes(node))
    return False


def _joins(module: Module, call: Call) -> bool:
    return is_reduction(module, call) or _JOINS.search(call.method) is not None


def _own_names(module: Module, scope: Scope, depth: int) -> set[str]:
    """Return the names that, in a function, hold what follows from this rank's own batches, and what nothing joins.

    Batches are those of a loop that trains, or that evaluates a share. From them it goes on through assignments, lists
    and meters, results of functions of this file, and what is bound under a test of such a number.
    """
    cache: dict[Scope, set[str]] = module.answers.setdefault(_own_names, {})
    if scope in cache or not depth:
        return cache.get(scope, set())
    cache[scope] = own = _batches(module, scope)
    # what all ranks evaluate whole is the same on all of them
    whole = {loop for loop, at in evaluations(module) if at is scope and not is_of_share(module, loop, scope)}
    bound = [found for found in scope.bound if not whole & set(found.place.loops)]
    calls = [call for call in scope.calls if not whole & set(call.place.loops)]
    # what a reduction works on in place, `x = reduce(x)` among it, is that of all ranks from there on
    joined = {"self", ""}
    for call in (each for each in scope.calls if _joins(module, each)):
        given = _texts(*call.node.args)
        if call.is_alone:
            tensors = _texts(*(part for part in call.node.args if isinstance(part, ast.Name | ast.Attribute)))
            joined |= given | {found.text.removeprefix("self.") for found in bound if _texts(found.value) & tensors}
        else:
            joined |= given & _texts(*call.place.targets)
    own -= joined
    while True:
        more = {found.text.removeprefix("self.") for found in bound if _makes_own(module, found, depth)}
        for call in calls:
            keeps = call.method in _FILLS or _JUDGES.search(call.base or (call.text if call.is_alone else ""))
            if keeps and any(is_own(module, part, scope, depth) for part in call.node.args):
                more.add((call.base or call.text).removeprefix("self."))
        more -= joined
        if more <= own:
            return own
        own |= more


def _texts(*nodes: ast.expr | None) -> set[str]:
    """Return the variables and fields in expressions."""
    return {text.removeprefix("self.") for node in nodes for text in texts_in(node)}


def _makes_own(module: Module, found: Binding, depth: int = 3) -> bool:
    """Whether a binding gives a name a number of this rank's own, or is made under a test of one."""
    stmt, scope = found.place.stmt, found.place.scope
    made = stmt.iter if isinstance(stmt, ast.For) else getattr(stmt, "value", None)
    if is_own(module, found.value or made, scope, depth):
        return True
    # in the `if` itself, not behind one that ends early
    inside = (each for each in found.place.branches if stmt.lineno <= (each.node.end_lineno or 0))
    return any(is_own(module, branch.test, scope, depth) for branch in inside)


def _batches(module: Module, scope: Scope) -> set[str]:
    """Return the names of the batches that a function trains on, and of those of a share that it evaluates."""
    around, found = loops_around(module), set[str]()
    loops = {loop for loop in training_loops(module) if around[loop][0] is scope}
    loops |= {loop for loop, at in evaluations(module) if at is scope and is_of_share(module, loop, scope)}
    for loop in loops:
        if isinstance(loop, ast.For) and called(loop.iter) not in {"range", "trange"}:
            counted = any(called(part) == "enumerate" for part in ast.walk(loop.iter))
            found |= names_in(loop.target.elts[-1] if counted and isinstance(loop.target, ast.Tuple) else loop.target)
        drawn = (bound for bound in scope.bound if loop in bound.place.loops)
        found |= {bound.text for bound in drawn if _DRAWS.fullmatch(called(bound.made))}
    return found
