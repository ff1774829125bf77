"""A fork server: one import of torch for all ranks (`python -m ...forks.server PARENT FD`).

It ends when the ranks have been forked. Before, it imports the standard library, numpy and torch, and nothing of the
program. When it ends, the supervisor, a subreaper until then, becomes the parent of the ranks: pid, exit status and
parent-death signal work as for a rank started with a fresh interpreter.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import site
import socket
import sys
import types
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from rankwise.launch import child

GO = b"g"
_MAX_BYTES = 1 << 16
_NUM_FDS = 5
_TASKS, _FDS = Path("/proc/self/task"), Path("/proc/self/fd")


def main(argv: Sequence[str]) -> list[str]:
    """Serve fork requests; return in the forked ranks only, with the arguments for `child.main`."""
    parent, line_fd = int(argv[0]), int(argv[1])
    child.die_with_parent(parent)
    os.closerange(3, line_fd)  # what the supervisor inherited is not for the ranks
    os.closerange(line_fd + 1, 4096)
    child.end_well()  # before torch registers its atexit handlers, as in a rank with a fresh interpreter
    with socket.socket(fileno=line_fd) as line:
        request = json.loads(line.recv(_MAX_BYTES))
        os.environ.update(request["env"])  # before the import of torch, whose libraries read some variables then
        for name in request["without"]:
            del os.environ[name]
        path = list(sys.path)
        try:
            reason = _load(request["names"], request["path"] or [request["first"], *path], request["first"])
        except BaseException as error:  # noqa: BLE001  (whatever it is: the ranks will meet it, and tell it)
            reason = repr(error)
        sys.path[:] = path
        line.send(json.dumps(reason).encode())
        while True:
            message, fds, _, _ = socket.recv_fds(line, _MAX_BYTES, _NUM_FDS)
            if not message:
                os._exit(0)
            try:
                pid, code = os.fork(), 0
            except OSError as error:
                pid, code = -1, error.errno or 0
            if pid == 0:
                os.setsid()
                break
            for fd in fds:
                os.close(fd)
            line.send(json.dumps({"pid": pid, "errno": code}).encode())
    report_fd = _become(json.loads(message), fds)
    words = [argv[0], str(report_fd), *request["words"]]
    sys.orig_argv[sys.orig_argv.index("rankwise.launch.local.forks.server") :] = [child.__name__, *words]
    return words


def _load(names: Sequence[str], path: Sequence[str], first: str) -> str:
    """Import what the ranks import first; return why this process must not be forked, "" if it may.

    Args:
        names: what to import, in order.
        path: the `sys.path` of the ranks. Only libraries are imported from it. If the program's own folders hold a
            module of a name that these imports used, the process must not be forked.
        first: the folder of the program.
    """
    fds, standard = _open_fds(), os.path.dirname(os.__file__)  # noqa: PTH120
    libraries = (standard, *site.getsitepackages(), site.getusersitepackages())
    own = [entry for entry in path if entry == first or not entry.startswith(libraries)]
    sys.path[:] = [entry for entry in path if entry not in own]
    for name in {"sitecustomize", "usercustomize"} & sys.modules.keys():
        if not str(sys.modules[name].__file__).startswith(standard):
            return f"{name} may differ from rank to rank"
    missed: set[str] = set()  # packages that were looked for and not found
    last: Any = types.SimpleNamespace(find_spec=lambda name, *_: missed.add(name.partition(".")[0]))
    sys.meta_path.append(last)
    for name in names:
        importlib.import_module(name)
    sys.meta_path.remove(last)
    # also check modules imported before: a rank with a fresh interpreter may find them in the program's folders
    for top in ({name.partition(".")[0] for name in sys.modules} - {"__main__"}) | missed:
        spec, loaded = PathFinder.find_spec(top, own), getattr(sys.modules.get(top), "__spec__", None)
        if spec is not None and spec.origin is not None and spec.origin != getattr(loaded, "origin", None):
            return f"the ranks would have loaded {spec.origin}"
    if _hooks(path) != _hooks(sys.path):
        return "the program's folders hold hooks of torch"
    return _unsafe(fds)


def _hooks(path: Sequence[str]) -> set[tuple[str, str]]:
    """Return the entry points that an import of torch with this `sys.path` runs at its end."""
    found = metadata.distributions(path=list(path))
    return {(entry.name, entry.value) for one in found for entry in one.entry_points if entry.group == "torch.backends"}


def _open_fds() -> list[str]:
    return sorted(os.listdir(_FDS))  # noqa: PTH208  (a number, as the listing itself has one)


def _unsafe(fds: list[str]) -> str:
    """Return what the imports left that does not survive a fork, or that the ranks would share; "" for nothing."""
    sys.stdout.flush()
    if len(os.listdir(_TASKS)) != 1:  # noqa: PTH208
        trial = os.fork()
        if trial == 0:
            os._exit(0)
        os.waitpid(trial, 0)
    has_children = True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        has_children = False
    found = {
        "something was written": os.fstat(1).st_size > 0,  # each rank must print it itself
        "the imports are traced": sys.gettrace() is not None or sys.getprofile() is not None,
        "CUDA is initialised": sys.modules["torch"].cuda.is_initialized(),
        # libraries with fork handlers (OpenBLAS) ended their threads before the trial fork, and restart them later
        "there are threads": len(os.listdir(_TASKS)) != 1,  # noqa: PTH208
        "there are new descriptors": _open_fds() != fds,
        "there are child processes": has_children,
    }
    return next((reason for reason, is_so in found.items() if is_so), "")


def _become(request: Any, fds: Sequence[int]) -> int:
    """Turn this copy of the server into a rank, wait until `release`, and return the descriptor of its report."""
    from multiprocessing import process

    stdin, out, err, report_fd, gate = fds
    for fd, number in ((stdin, 0), (out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    _reopen_streams()
    os.environ.update(request["env"])
    # as with a fresh interpreter: spawned workers look here for the module to import
    sys.modules["__main__"] = child
    # seeds and authkey of its own; Python reseeds `random` after each fork itself
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.modules["torch"].default_generator.seed()
    process.current_process().authkey = os.urandom(32)
    if os.read(gate, 1) != GO:
        os._exit(1)
    os.close(gate)
    return report_fd


def _reopen_streams() -> None:
    """Create the standard streams again, as the interpreter does at its start, for the rank's own files."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        like = getattr(sys, name)
        raw = io.FileIO(fd, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer: Any = raw  # -u
        if isinstance(like.buffer, io.BufferedIOBase):
            buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            buffer,
            encoding=like.encoding,
            errors=like.errors,
            newline="\n",
            line_buffering=raw.isatty() or name == "stderr",
            write_through=like.write_through,
        )
        text.mode = mode  # type: ignore[misc]
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


if __name__ == "__main__":
    words = main(sys.argv[1:])
    child.main(words)
