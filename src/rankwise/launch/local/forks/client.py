"""The supervisor's side of a fork server: decide whether an attempt's ranks can be forked, and run the server."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import ConfigError
from rankwise.launch.local.forks.preload import leading_imports, source_of
from rankwise.launch.local.forks.process import ServerProcess
from rankwise.launch.local.loop import ENDING

if TYPE_CHECKING:
    from rankwise.launch.job import Job
    from rankwise.launch.local.environment import RankCores
    from rankwise.launch.local.loop import Loop
    from rankwise.launch.local.pipes import RankPipes
    from rankwise.launch.target import Target

START = "RANKWISE_START"
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_RANKS_OWN = frozenset({"RANK", "LOCAL_RANK", "ROLE_RANK", "RANKWISE_CORES"})
# tools that load into a process before its program, and may behave differently per process
_TOOLS = ("LD_PRELOAD", "LD_AUDIT", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COV_CORE_SOURCE")
_READY_S = 300.0  # limit for importing torch, sized for a slow disk; after it the ranks are started one by one
_FORK_S = 60.0
_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "HOME")
_MAX_ENV = 1 << 15  # characters; all variables may have to be sent in one message
_GPUS = ("/dev/dxg", "/dev/kfd")


def names_to_load(
    job: Job, all_cores: Sequence[RankCores], environments: Sequence[Mapping[str, str]]
) -> tuple[str, ...]:
    """Return the modules that a fork server of these ranks would import, () to start them one by one.

    Raises:
        ConfigError: RANKWISE_START is neither "auto" nor "fresh".
    """
    first, *others = environments
    start = first.get(START) or "auto"
    if start not in {"auto", "fresh"}:
        raise ConfigError(f"{START} must be auto or fresh, got {start!r}")
    if start == "fresh" or not others or sys.platform != "linux":
        return ()
    if any(cores.cpus is not None for cores in all_cores) or any(first.get(name) for name in _TOOLS) or _has_gpu():
        return ()
    if any(_common(env) != _common(first) for env in others):
        return ()
    target = job.target
    path, _ = source_of(target)
    function = target.name.partition(":")[2] if target.kind == "function" else target.function
    return leading_imports(path, function) if path is not None else ()


def _common(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in _RANKS_OWN}


def _has_gpu() -> bool:
    """Whether this machine has a GPU, visible or not: forking with GPU libraries loaded is untested."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path(name).exists() for name in _GPUS)


class ForkServer:
    """A process that imports what the ranks of one attempt import first, and forks them.

    This process is a subreaper until `release`, so the forked ranks become its children. They block until then, before
    any code of the program has run, so giving up earlier has no side effects.

    The process may have been started early; then its owner closes it.

    Attributes:
        reason: why it cannot fork ranks, "" if it can; None: not known yet.

    Raises:
        OSError: the server cannot be started on this system.
        NotImplementedError: the same.
    """

    def __init__(
        self, target: Target, names: Sequence[str], env: Mapping[str, str], early: ServerProcess | None = None
    ) -> None:
        self.reason: str | None = None
        self._env = _common(env)
        self._num_forked = 0
        words, (_, first) = [target.kind, target.name, *target.args], source_of(target)
        with contextlib.ExitStack() as stack:
            self._was_subreaper = _set_subreaper(on=True)
            stack.callback(_set_subreaper, on=self._was_subreaper)
            self._gate_read, self._gate_write = os.pipe()
            stack.callback(os.close, self._gate_read)
            stack.callback(os.close, self._gate_write)
            if early is None or not _suits(early.env, self._env):
                flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
                early = ServerProcess(self._env, flags, words)
            stack.callback(early.close)
            self._process, self._held = early, stack.pop_all()
        request = {
            "names": names,
            "first": first,
            "path": target.path or None,
            "words": words,
            "env": {name: value for name, value in self._env.items() if early.env.get(name) != value},
            "without": sorted(early.env.keys() - self._env.keys()),
        }
        try:
            early.line.send(json.dumps(request).encode())
        except OSError as error:  # it has ended, or the arguments are too long for one message
            self.reason = str(error)
        early.line.settimeout(_FORK_S)

    def becomes_ready(self, loop: Loop, limit_s: float) -> bool:
        """Serve the loop until the server is ready; return whether it can fork ranks."""
        deadline, line_fd = time.monotonic() + limit_s, self._process.line.fileno()
        held: list[int] = []
        loop.watch(line_fd, self.listen)
        try:
            while self.reason is None and not ENDING.intersection(held) and time.monotonic() < deadline:
                loop.step(max(0.0, deadline - time.monotonic()))
                while loop.signals:  # take the signals out, or the loop would return at once every time
                    held.append(loop.signals.popleft())
        finally:
            loop.remove(line_fd)
            loop.signals.extend(number for number in held if number != signal.SIGCHLD)
        return self.reason == "" and not ENDING.intersection(held)

    def listen(self) -> None:
        """Read the server's answer into `reason`."""
        try:
            answer = self._process.line.recv(1 << 16)
        except OSError:
            answer = b""
        self.reason = json.loads(answer) if answer else "it has ended"

    def fork(self, env: Mapping[str, str], pipes: RankPipes) -> int:
        """Fork a rank with its whole environment and its descriptors, which waits for `release`; return its process id.

        Raises:
            OSError: the rank cannot be forked.
        """
        line = self._process.line
        own = {name: value for name, value in env.items() if self._env.get(name) != value}
        out, err = 1 if pipes.out is None else pipes.out, 2 if pipes.err is None else pipes.err
        fds = [pipes.stdin, out, err, pipes.report, self._gate_read]
        socket.send_fds(line, [json.dumps({"env": own}).encode()], fds)
        answer = line.recv(1 << 16)
        if not answer:
            raise OSError("the process that forks the ranks has ended")
        forked = json.loads(answer)
        if forked["pid"] < 0:
            raise OSError(forked["errno"], os.strerror(forked["errno"]))
        self._num_forked += 1
        return int(forked["pid"])

    def release(self) -> None:
        """End the server and let the ranks run."""
        self._process.close()  # its children, the ranks, become this process's children
        _set_subreaper(on=self._was_subreaper)  # reset before the ranks run, so that their orphans are not adopted here
        os.write(self._gate_write, b"g" * self._num_forked)
        self.close()

    def close(self) -> None:
        """End the server and the ranks that still wait for `release`; a second call does nothing."""
        self._held.close()


def _suits(began_with: Mapping[str, str], env: Mapping[str, str]) -> bool:
    """Whether a process can switch from one environment to another: variables read at its start must be equal."""
    changed = {name for name in began_with.keys() | env.keys() if began_with.get(name) != env.get(name)}
    return not any(name.startswith(_AT_START) for name in changed) and sum(map(len, env.values())) < _MAX_ENV


def open_server(
    job: Job,
    all_cores: Sequence[RankCores],
    environments: Sequence[Mapping[str, str]],
    loop: Loop,
    *,
    meanwhile: Callable[[], object],
    early: ServerProcess | None = None,
) -> ForkServer | None:
    """Return a server that is ready to fork the ranks of a launch, None to start them one by one.

    A signal that ends the launch also ends this wait; it stays in `loop.signals`, as do the others except SIGCHLD.

    `meanwhile` is called once while the server starts; `early` is a process that may become the server.
    """
    names = names_to_load(job, all_cores, environments)
    if not names:
        return None
    try:
        server = ForkServer(job.target, names, environments[0], early)
    except (OSError, NotImplementedError):
        return None  # not possible on this system
    try:
        meanwhile()
        if server.becomes_ready(loop, min(job.timeout_s or _READY_S, job.hang_timeout_s or _READY_S, _READY_S)):
            return server
    except BaseException:
        server.close()
        raise
    server.close()
    return None


def _set_subreaper(*, on: bool) -> bool:
    """Make this process adopt the orphans among its descendants, or not; return whether it did before."""
    before, prctl = ctypes.c_int(), ctypes.CDLL(None, use_errno=True).prctl
    for option, value in ((_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)), (_PR_SET_CHILD_SUBREAPER, int(on))):
        if prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
    return bool(before.value)
