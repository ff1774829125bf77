"""RW620, RW622: a group that is used before it starts, and a port of the rendezvous that each rank draws for itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import environment_writes, is_before_ranks
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, Scope
from rankwise.diagnose.lint.analysis.wrapped import DDP
from rankwise.diagnose.lint.record import Hit, rule

_DRAWS = re.compile(r"(rand(int|range|om)?|choice|uniform|sample|\w*free_?port\w*|\w*(find|get)_\w*port|getsockname)")


@rule(
    "RW622", "port-drawn-by-each-rank", "error", "medium",
    message="each rank draws a port of its own here: they never meet",
    why="The port of the rendezvous must be the same on all ranks. Draw it once, before the ranks start, and hand it to them, or "
    "leave it to the launcher.",
    wrong="""
import os
import random
import torch.distributed as dist

def work(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(random.randint(20000, 30000))
    dist.init_process_group("gloo", rank=rank, world_size=size)
""",
    right="""
import os
import torch.distributed as dist

def work(rank, size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=size)
""",
    ignore="there is one rank only.",
)  # fmt: skip
def port_drawn_by_each_rank(module: Module) -> Iterator[Hit]:
    """MASTER_PORT, or the port of init_method, is a random or a free one in the function that starts the group."""
    groups = list(module.named("torch.distributed.init_process_group"))
    for name, _, value, place in environment_writes(module) if groups else ():
        stands = isinstance(place.stmt, ast.Assign) and not place.branches and place.scope.is_function
        if name != "MASTER_PORT" or not stands or not _is_drawn(module, value, place.scope):
            continue
        own = [
            call for call in groups if call.place.scope is place.scope and position(call.node) > position(place.stmt)
        ]
        # with one rank there is nothing to disagree about
        if any(not _is_alone(call) for call in own) and not _is_seeded(place):
            yield Hit(value)
    for call in groups:
        method, place = call.argument("init_method", 1), call.place
        stands = place.scope.is_function and not place.branches and not is_before_ranks(module, place.scope)
        if method is None or not stands or _is_alone(call) or _is_seeded(place):
            continue
        if not module.has_call("broadcast_object_list", "bcast") and _is_drawn(module, method, place.scope):
            yield Hit(method)


def _is_drawn(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether an expression, or what a variable in it was bound to by each rank, draws a number."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and _DRAWS.fullmatch(last(text_of(part.func))):
            return True
        if isinstance(part, ast.Name | ast.Attribute) and depth:
            found = module.binding(text_of(part), scope, before=part)
            if found is None or found.value is None or found.value is node or found.place.branches:
                continue
            if found.place.loops or is_before_ranks(module, found.place.scope) or not found.place.scope.is_function:
                continue
            if _is_drawn(module, found.value, found.place.scope, depth - 1):
                return True
    return False


def _is_seeded(place: Place) -> bool:
    return any("seed" in call.method and position(call.node) < position(place.stmt) for call in place.scope.calls)


def _is_alone(call: Call) -> bool:
    return any(_is_number(call.argument(*each)) for each in (("rank", 4), ("world_size", 3)))


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


_ASKS = frozenset(
    {"get_rank", "get_world_size", "barrier", "all_reduce", "broadcast", "all_gather", "broadcast_object_list"}
)
_STARTS_ONE = re.compile(r"init|setup|launch|distributed|start|prepare", re.IGNORECASE)


@rule(
    "RW620", "used-before-init", "error", "high",
    message="{name} asks the process group, which init_process_group starts only further down",
    why="Without a group the call raises ValueError.",
    wrong="""
import torch.distributed as dist

rank = dist.get_rank()
dist.init_process_group("gloo")
""",
    right="""
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
""",
    ignore="something that was called before starts another group.",
)  # fmt: skip
def used_before_init(module: Module) -> Iterator[Hit]:
    """get_rank(), a collective or the wrap, above init_process_group in one function, and nothing that may start one.

    A function of the file that always starts the group, and is called in one place, is the start, too.
    """
    direct = list(module.named("torch.distributed.init_process_group"))
    makers = {call.place.scope for call in direct if _is_straight(call.place) and call.place.scope.is_function}
    starts = direct + [calls[0] for scope in makers if len(calls := module.callers(scope)) == 1]
    for start in starts:
        scope = start.place.scope
        above = [call for call in scope.calls if position(call.node) < position(start.node)]
        if _is_straight(start.place) and not any("destroy" in call.method for call in above):
            yield from _first_ask(start, above)
    # what stands at the top of a script runs before its functions do
    if direct and len(makers) == len(direct) and "__main__" in module.source:
        yield from _first_ask(direct[0], module.top.calls)


def _first_ask(start: Call, calls: list[Call]) -> Iterator[Hit]:
    for call in calls:
        if _STARTS_ONE.search(call.method):
            return
        asks = call.name.startswith("torch.distributed.") and call.method in _ASKS
        inside = call.node in ast.walk(start.node)  # its own arguments come first, too
        if (asks or call.name == DDP) and not call.place.branches and not inside:
            yield Hit(call.node, {"name": call.text})
            return


def _is_straight(place: Place) -> bool:
    """Whether control always comes to a place."""
    return not (place.branches or place.loops or place.tries)
