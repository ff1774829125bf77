"""This rank's last calls of torch.distributed, from torch's flight recorder and from wrappers around the functions.

The flight recorder (on by default since torch 2.5, also for gloo) records every collective, including those of DDP's
backward pass: group, sequence number, operation, shapes, types. It records neither the reduction nor the source, and
its JSON form lacks the calling line. The wrappers here record these when Python code makes the call.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

_KEPT = 8  # calls per group that are reported
_NOTED = 64
# function -> arguments that must be equal on all ranks, with their positions if they may be positional
_CALLS: dict[str, dict[str, int]] = {
    "all_reduce": {"op": 1},
    "reduce": {"dst": 1, "op": 2},
    "broadcast": {"src": 1},
    "all_gather": {},
    "all_gather_into_tensor": {},
    "reduce_scatter": {"op": 2},
    "reduce_scatter_tensor": {"op": 2},
    "gather": {"dst": 2},
    "scatter": {"src": 2},
    "all_to_all": {},
    "all_to_all_single": {},
    "barrier": {},
}
_DEFAULTS: dict[str, object] = {"src": 0, "dst": 0}
_noted: deque[tuple[str, int, dict[str, str], str]] = deque(maxlen=_NOTED)


def record_calls() -> None:
    """Record the calling line, reduction and source of each collective of torch.distributed from now on.

    A call then takes about two microseconds longer. Functions that a program imported from torch.distributed before are
    not recorded. Does nothing if torch.distributed is not imported, or if this was called before.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    front = sys.modules.get("torch.distributed")
    if module is None or front is None or getattr(module.all_reduce, "noted_by_rankwise", False):
        return
    for name, arguments in _CALLS.items():
        original = getattr(module, name, None)
        if original is not None:
            noting = _noting(original, arguments, module)
            for holder in (module, front):
                if getattr(holder, name, None) is original:
                    setattr(holder, name, noting)


def _noting(original: Callable[..., Any], arguments: dict[str, int], module: Any) -> Callable[..., Any]:
    """Return `original` wrapped so that each call is recorded; an error while recording is ignored."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            placed = next((arg for arg in args if isinstance(arg, module.ProcessGroup)), None)
            group = kwargs.get("group") or placed or module._get_default_group()  # noqa: SLF001
            given = {
                key: _text(kwargs.get(key, args[place] if place < len(args) else _DEFAULTS.get(key)))
                for key, place in arguments.items()
            }
            caller = sys._getframe(1)  # noqa: SLF001
            where = f"{caller.f_code.co_filename}:{caller.f_lineno} in {caller.f_code.co_name}"
            number = group._get_sequence_number_for_group() + 1  # noqa: SLF001
            _noted.append((str(group.group_name), number, given, where))
        except Exception:  # noqa: BLE001, S110  (a note must never change what a program does)
            pass
        return original(*args, **kwargs)

    call.noted_by_rankwise = True  # type: ignore[attr-defined]
    return call


def _text(value: object) -> str:
    """Return a short text for a reduction or rank; None is the default, sum."""
    text = "SUM" if value is None else str(getattr(value, "name", value))
    return text.removeprefix("RedOpType.").removeprefix("ReduceOp.")


def num_calls() -> int | None:
    """Return how many collectives this process has begun in all its groups; None if unknown."""
    total = None
    for _, group in _groups():
        try:
            total = (total or 0) + int(group._get_sequence_number_for_group())  # noqa: SLF001
        except (RuntimeError, AttributeError):  # a backend without sequence numbers
            continue
    return total


def last_calls() -> list[dict[str, Any]]:
    """Return every group of this process with its last collectives there, oldest first.

    Each group is ``{"name", "ranks", "calls"}``, each call ``{"number", "name", "sizes", "dtypes", "ended",
    "arguments", "line"}``; `arguments` and `line` are empty if the call came from C++ (a backward pass).
    """
    recorded = _recorded()
    noted = {(name, number): (given, where) for name, number, given, where in list(_noted)}
    groups = []
    for ranks, group in _groups():
        name = str(group.group_name)
        calls = recorded.get(name, [])[-_KEPT:]
        if not calls:  # only the wrappers have recorded them, without shapes and end state
            numbers = [number for of, number in noted if of == name][-_KEPT:]
            calls = [{"number": n, "name": "collective", "sizes": [], "dtypes": [], "ended": None} for n in numbers]
        for call in calls:
            call["arguments"], call["line"] = noted.get((name, call["number"]), ({}, ""))
        groups.append({"name": name, "ranks": ranks, "calls": calls})
    return groups


def _groups() -> list[tuple[list[int], Any]]:
    """Return the groups of torch.distributed that this process is in, with their global ranks."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    if world is None:
        return []
    try:
        return [(sorted(world.pg_group_ranks[group]), group) for group in list(world.pg_map)]
    except (AttributeError, KeyError, RuntimeError):  # private names, which torch may change, or a group in creation
        return []


def _recorded() -> dict[str, list[dict[str, Any]]]:
    """Return the flight recorder's entries by group; empty if it is off or its format has changed."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace_json", None)
    calls: dict[str, list[dict[str, Any]]] = {}
    try:
        entries = json.loads(dump(True, False))["entries"] if dump else []  # noqa: FBT003
        for entry in entries:
            if not entry["is_p2p"]:
                calls.setdefault(str(entry["process_group"][0]), []).append(
                    {
                        "number": entry["collective_seq_id"],
                        "name": entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
                        "sizes": entry["input_sizes"],
                        "dtypes": entry["input_dtypes"],
                        "ended": entry["retired"] or entry["state"] == "completed",
                    }
                )
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return {}
    return calls
