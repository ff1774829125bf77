"""Pickle a call for fresh interpreters: the function by reference if they can import it, by value otherwise.

Of what cannot be pickled, or is large, find the part, and its path.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import os
import pickle
import reprlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.launch.functions.platforms import Platform

_MAX_DEPTH = 40
_UNNAMED = " ("  # the path of a part without a name of its own starts with this
_MODULE_TABLES = ("_modules", "_parameters", "_buffers")  # dicts of a torch module that hold such attributes
_MAIN = "__main__"
_HEAVY_BYTES = 1 << 26  # above this size of what is sent along with a function, print a message


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


class _Watcher(pickle.Pickler):
    """Notes whether an object is sent by name that exists only under `if __name__ == "__main__":`, not on the ranks."""

    meets_guarded = False

    def reducer_override(self, value: Any) -> Any:
        self.meets_guarded |= isinstance(value, (type, types.FunctionType)) and _is_guarded(value)
        return NotImplemented


@dataclass(kw_only=True, slots=True)
class _Packer:
    """Pickles a call for ranks that may not be able to import all modules of this process."""

    name: str
    main: Mapping[str, str] | None  # how to import this main program again
    by_value: Any = None  # a module that a fresh interpreter cannot import

    def dumps(self, value: Any) -> bytes:
        """Pickle; use cloudpickle if the standard pickler fails, or if a fresh interpreter could not unpickle."""
        problem: Exception | None = None
        if self.by_value is None:
            buffer = io.BytesIO()
            watcher = _Watcher(buffer)
            try:
                watcher.dump(value)
            except Exception as error:  # noqa: BLE001  (whatever it is, cloudpickle gets its turn)
                problem = error
            data = buffer.getvalue()
            if problem is None and not watcher.meets_guarded and (self.main is not None or _MAIN.encode() not in data):
                return data
        try:
            import cloudpickle
        except ImportError:
            raise ConfigError(
                f"{self.name} cannot be imported by a fresh interpreter (it is a lambda, a closure, or defined in a "
                'notebook or under if __name__ == "__main__":): put it into a module or above that line, or '
                "pip install cloudpickle, which sends it by value"
            ) from problem
        if self.by_value is None:
            return bytes(cloudpickle.dumps(value))
        cloudpickle.register_pickle_by_value(self.by_value)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            cloudpickle.unregister_pickle_by_value(self.by_value)


def pack_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, platform: Platform | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Pickle a call for fresh interpreters, where `callee.run_call` executes it.

    With a `platform` the ranks call it by `platforms.run_task`.

    Returns:
        The pickled call, which the supervisor forwards without unpickling, and the fields `main`, `function` and `path`
        of its `Target`: what the ranks import for it.

    Raises:
        ConfigError: the function or an argument cannot be sent; the message says which.
    """
    name = getattr(fn, "__qualname__", repr(fn))
    if not callable(fn):
        raise ConfigError(f"the ranks need a function to call, got {fn!r} ({type(fn).__name__})")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        kind = "asynchronous" if inspect.iscoroutinefunction(fn) else "a generator function"
        raise ConfigError(f"{name} is {kind}: its ranks would return before it runs; run it inside a plain function")
    reference = _reference(fn)
    packer = _Packer(name=name, main=_describe_main())
    if reference is None and getattr(fn, "__module__", _MAIN) not in {_MAIN, "builtins"}:
        packer.by_value = _unreachable(sys.modules.get(fn.__module__))
    call = _dump_parts(packer, fn if reference is None else None, args, kwargs)
    meets_main = _MAIN.encode() in call or (reference is not None and reference[0] == _MAIN)
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100  (as sys.path has it)
    data = pickle.dumps(
        {
            "main": packer.main if meets_main else None,
            "sys_path": path,
            "reference": reference,
            "call": call,
            "name": name,
            "platform": platform,
        }
    )
    file = _file_of(fn, reference) if platform is None and _is_plain((args, kwargs)) else ""
    main = (packer.main or {}).get("path", "") if meets_main else file
    return data, {"main": main, "function": fn.__name__ if file and file == main else "", "path": path}


def _file_of(fn: Callable[..., Any], found: tuple[str, str, int] | None) -> str:
    """Return the file that is executed when ranks import a function, "" if there is none or more than one."""
    if found is None or not isinstance(fn, types.FunctionType):
        return ""
    module, qualname, depth = found
    if depth or "." in module + qualname:
        return ""
    file = os.path.abspath(fn.__code__.co_filename)  # noqa: PTH100
    here = getattr(sys.modules[module], "__file__", None)
    return file if here and file.endswith(".py") and os.path.abspath(here) == file else ""  # noqa: PTH100


def _is_plain(value: Any) -> bool:
    """Whether ranks can unpickle a value without importing anything."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _dump_parts(packer: _Packer, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle a call; raise an error that names the part that cannot be sent, and say what is large."""
    try:
        call = packer.dumps((fn, args, dict(kwargs)))
    except Exception as error:
        without_cloudpickle = isinstance(error, ConfigError)
        reason = error.__cause__ if without_cloudpickle else error
        if without_cloudpickle and (fn is not None or reason is None):
            raise
        for path, value in (("", fn), *((f"args[{i}]", arg) for i, arg in enumerate(args)), *kwargs.items()):
            if not pickled_size(value, packer.dumps):
                where, guilty = find_unsendable(value, path, packer.dumps)
                what = f"argument {where} of {packer.name}" if path else f"{packer.name}{where}"
                raise ConfigError(
                    f"{what}, a {type(guilty).__name__}, cannot be sent to the ranks: {reason}; create it on each rank"
                ) from error
        raise
    if len(call) > _HEAVY_BYTES and fn is not None:  # large arguments are intended, and not reported
        path, part, num_bytes = find_heavy(fn, packer.name, packer.dumps)
        if num_bytes > _HEAVY_BYTES and part is not fn:
            print(  # noqa: T201
                f"rankwise: {path}, a {type(part).__name__}, takes {num_bytes / 1e6:,.0f} MB to every rank: load it in "
                "the function, or pass its path",
                file=sys.stderr,
            )
    return call


def _reference(fn: Callable[..., Any]) -> tuple[str, str, int] | None:
    """Return the arguments for `callee.find_function` with which a fresh interpreter finds a function, None if none."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not qualname or "<" in qualname or module not in sys.modules:
        return None
    if _is_guarded(fn):
        return None
    if (_describe_main() is None) if module == _MAIN else (_unreachable(sys.modules[module]) is not None):
        return None
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part, None)
    depth = 0
    while found is not None and found is not fn:
        found, depth = getattr(found, "__wrapped__", None), depth + 1
    return None if found is None else (module, qualname, depth)


def _is_guarded(value: Any) -> bool:
    """Whether a function or class of the main program is defined in its guarded part, which ranks do not run."""
    main = sys.modules.get(_MAIN)
    file = getattr(main, "__file__", None)
    if getattr(value, "__module__", None) != _MAIN or file is None:
        return False
    return str(getattr(value, "__qualname__", "")).partition(".")[0] in _guarded_names(file)


@functools.cache
def _guarded_names(file: str) -> frozenset[str]:
    """Names of functions and classes that are defined under `if __name__ == "__main__":`."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()  # the file is compiled, or does not exist any more
    guards = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    inside = (node for guard in guards for statement in guard.body for node in ast.walk(statement))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in inside if isinstance(node, kinds))


def _describe_main() -> dict[str, str] | None:
    """Return how a fresh interpreter can import this main program again, None if it cannot (notebook, prompt, -c)."""
    main = sys.modules.get(_MAIN)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != _MAIN:  # else a folder, an archive, or a script that a profiler runs
        return {"name": str(spec.name)}
    path = getattr(main, "__file__", None) or getattr(spec, "origin", None)
    if path is not None and not Path(path).is_file():
        path = os.path.dirname(path)  # noqa: PTH120  (of an archive)
    if path is None or not Path(path).is_file():
        return None
    return {"path": os.path.abspath(path)}  # noqa: PTH100


def _unreachable(module: Any) -> Any:
    """Return the module if a fresh interpreter with this sys.path would not find it by name, None if it would."""
    if module is None:
        return None
    search: Any = None
    name = ""
    spec: Any = None
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, search) for finder in finders)), None)
        if spec is None:
            return module
        search = spec.submodule_search_locations
    return None if spec.origin == getattr(module.__spec__, "origin", None) else module
