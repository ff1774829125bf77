"""Find the part of a call that cannot be pickled, or the largest part, and give its path."""

from __future__ import annotations

import functools
import pickle
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MAX_DEPTH = 40
_UNNAMED = " ("  # the path of a part without a name of its own starts with this
_MODULE_TABLES = ("_modules", "_parameters", "_buffers")  # dicts of a torch module that hold such attributes


def find_unsendable(value: Any, path: str, dump: Callable[[Any], bytes]) -> tuple[str, Any]:
    """Return the path and the value of the innermost part that cannot be sent; the value itself if all its parts can.

    `path` is its name in messages, as "args[0]"; `dump` pickles a value the way it would be sent, and raises if that
    fails.
    """
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        seen.add(id(value))
        guilty = next(
            (part for part in _parts(value) if id(part[1]) not in seen and not pickled_size(part[1], dump)), None
        )
        if guilty is None:
            break
        path, value = path + guilty[0], guilty[1]
    return path, value


def find_heavy(value: Any, path: str, dump: Callable[[Any], bytes]) -> tuple[str, Any, int]:
    """Return the path, the value and the pickled size of the innermost part that makes up most of a value."""
    num_bytes = len(dump(value))
    for _ in range(_MAX_DEPTH):
        named = ((suffix, part) for suffix, part in _parts(value) if not suffix.startswith(_UNNAMED))
        sizes = [(pickled_size(part, dump), suffix, part) for suffix, part in named]
        most, suffix, part = max(sizes, key=lambda entry: entry[0], default=(0, "", None))
        if most <= num_bytes / 2:
            break
        path, value, num_bytes = path + suffix, part, most
    return path, value, num_bytes


def pickled_size(value: Any, dump: Callable[[Any], bytes]) -> int:
    """Return how many bytes a value takes, 0 if it cannot be sent."""
    try:
        return len(dump(value))
    except Exception:  # noqa: BLE001  (whatever its own pickling raises; a part may also want its whole)
        return 0


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each part of a value with the text to append to the path."""
    if isinstance(value, Mapping):
        yield from ((f"[{reprlib.repr(key)}]", part) for key, part in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{reprlib.repr(part)}}}", part) for part in value)
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{number}]", part) for number, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _used(value)
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items() if not name.startswith("__"))
    else:
        yield from _state(value)


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that are sent along with a function that is sent by value."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            yield f", which uses {name}", cell.cell_contents
        except ValueError:
            continue  # the cell is still empty
    for name in sorted(_global_names(function.__code__) & function.__globals__.keys()):
        yield f", which uses {name}", function.__globals__[name]
    yield from ((f", with its default {reprlib.repr(part)}", part) for part in function.__defaults__ or ())
    yield from ((f", with its default {name}", part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _global_names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickle stores of an object: its state, its class and its constructor arguments."""
    try:
        reduced = value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    except Exception:  # noqa: BLE001  (it cannot be pickled, and what it holds is not to blame)
        return
    if not isinstance(reduced, tuple):
        return  # pickled by name only
    state = reduced[2] if len(reduced) > 2 else None
    tables = state if isinstance(state, tuple) else (state,)
    for table in tables:
        if not isinstance(table, dict):
            if table is not None:
                yield f"{_UNNAMED}its state)", table
            continue
        for name, part in table.items():
            if name in _MODULE_TABLES and isinstance(part, dict):
                yield from ((f".{inner}", inside) for inner, inside in part.items())
            else:
                yield f".{name}", part
    yield f"{_UNNAMED}of class {type(value).__name__})", type(value)
    yield from ((f"{_UNNAMED}made with argument {number})", part) for number, part in enumerate(reduced[1]))
