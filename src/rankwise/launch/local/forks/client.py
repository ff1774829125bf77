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
from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError
from rankwise.launch.local.forks.preload import leading_imports, source_of
from rankwise.launch.local.loop import ENDING

if TYPE_CHECKING:
    from rankwise.launch.job import Job
    from rankwise.launch.local.environment import Seat
    from rankwise.launch.local.forks.spare import Spare
    from rankwise.launch.local.loop import Loop
    from rankwise.launch.local.pipes import Wires
    from rankwise.launch.target import Target

__all__ = ["ForkServer", "Forked", "names_to_load", "open_server"]

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


def names_to_load(job: Job, seats: Sequence[Seat], environments: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the modules that a fork server of these ranks would import, () to start them one by one.

    Args:
        job: the launch.
        seats: the seats of its ranks.
        environments: the environments of its ranks.

    Raises:
        ConfigError: RANKWISE_START is neither "auto" nor "fresh".
    """
    first, *others = environments
    wish = first.get(START) or "auto"
    if wish not in {"auto", "fresh"}:
        raise ConfigError(f"{START} must be auto or fresh, got {wish!r}")
    if wish == "fresh" or not others or sys.platform != "linux":
        return ()
    if any(seat.cpus is not None for seat in seats) or any(first.get(name) for name in _TOOLS) or _has_gpu():
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


class Forked:
    """A rank that a fork server has forked, with the interface of `subprocess.Popen`; a child of this process.

    Args:
        pid: its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Reap the rank if it has ended; return its exit status (negative: signal), None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        """Wait until the rank ends and return its exit status."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """A process that imports what the ranks of one attempt import first, and forks them.

    This process is a subreaper until `let_go`, so the forked ranks become its children. They block until then, before
    any code of the program has run, so giving up earlier has no side effects.

    Args:
        target: what the ranks run.
        names: the modules to import.
        env: variables that all ranks have.
        spare: a process that may become the server.

    Attributes:
        reason: why it cannot fork ranks, "" if it can; None: not known yet.

    Raises:
        OSError: the server cannot be started on this system.
    """

    def __init__(
        self, target: Target, names: Sequence[str], env: Mapping[str, str], spare: Spare | None = None
    ) -> None:
        self.reason: str | None = None
        self._env = _common(env)
        self._gate_read, self._gate_write = os.pipe()
        self._num_forked = 0
        self._was_subreaper = _is_subreaper()
        _set_subreaper(on=True)
        words = [target.kind, target.name, *target.args]
        began_with = self._env
        if spare is not None and spare.pid and _suits(spare.env, self._env):
            began_with = spare.env
            self._line, pid = spare.hand_over()
            self._process: Forked | subprocess.Popen[bytes] = Forked(pid)
        else:
            self._line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with far:
                    self._process = _start(far.fileno(), words, self._env)
            except BaseException:
                self._give_back()
                raise
        _, first = source_of(target)
        wish = {
            "names": names,
            "first": first,
            "path": target.path or None,
            "words": words,
            "env": {name: value for name, value in self._env.items() if began_with.get(name) != value},
            "without": sorted(began_with.keys() - self._env.keys()),
        }
        with contextlib.suppress(OSError):  # the server has ended: `listen` notices it
            self._line.send(json.dumps(wish).encode())
        self._line.settimeout(_FORK_S)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the server has answered."""
        return self._line.fileno()

    def listen(self) -> None:
        """Read the server's answer into `reason`."""
        try:
            answer = self._line.recv(1 << 16)
        except OSError:
            answer = b""
        self.reason = json.loads(answer) if answer else "it has ended"

    def fork(self, env: Mapping[str, str], wires: Wires) -> Forked:
        """Fork a rank with its whole environment and its descriptors; it waits for `let_go`.

        Raises:
            OSError: the rank cannot be forked.
        """
        own = {name: value for name, value in env.items() if self._env.get(name) != value}
        out, err = 1 if wires.out is None else wires.out, 2 if wires.err is None else wires.err
        fds = [wires.stdin, out, err, wires.report, self._gate_read]
        socket.send_fds(self._line, [json.dumps({"env": own}).encode()], fds)
        answer = self._line.recv(1 << 16)
        if not answer:
            raise OSError("the process that forks the ranks has ended")
        told = json.loads(answer)
        if told["pid"] < 0:
            raise OSError(told["errno"], os.strerror(told["errno"]))
        self._num_forked += 1
        return Forked(told["pid"])

    def let_go(self) -> None:
        """End the server and let the ranks run."""
        self._end_process()  # its children, the ranks, become this process's children
        _set_subreaper(on=self._was_subreaper)  # reset before the ranks run, so that their orphans are not adopted here
        os.write(self._gate_write, b"g" * self._num_forked)
        self._give_back()

    def close(self) -> None:
        """End the server and the ranks that still wait for `let_go`; a second call does nothing."""
        if self._line.fileno() < 0:
            return
        self._end_process()
        self._give_back()

    def _end_process(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)  # not reaped yet, so the pid still belongs to it
        self._process.wait()

    def _give_back(self) -> None:
        _set_subreaper(on=self._was_subreaper)
        self._line.close()
        os.close(self._gate_read)
        os.close(self._gate_write)


def _start(line_fd: int, words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    command = [sys.executable, *flags, "-P", "-m", "rankwise.launch.local.forks.server", str(os.getpid()), str(line_fd)]
    said = os.memfd_create("said")  # captures output of the imports; if there is any, the ranks import for themselves
    try:
        return subprocess.Popen(  # noqa: S603
            [*command, *words],  # shown in process lists only
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=(line_fd,),
            start_new_session=True,
        )
    finally:
        os.close(said)


def _suits(began_with: Mapping[str, str], env: Mapping[str, str]) -> bool:
    """Whether a process can switch from one environment to another: variables read at its start must be equal."""
    changed = {name for name in began_with.keys() | env.keys() if began_with.get(name) != env.get(name)}
    return not any(name.startswith(_AT_START) for name in changed) and sum(map(len, env.values())) < _MAX_ENV


def open_server(
    job: Job,
    seats: Sequence[Seat],
    environments: Sequence[Mapping[str, str]],
    loop: Loop,
    *,
    meanwhile: Callable[[], object],
    spare: Spare | None = None,
) -> ForkServer | None:
    """Return a server that is ready to fork the ranks of a launch, None to start them one by one.

    A signal that ends the launch also ends this wait; it stays in `loop.signals`, as do the others except SIGCHLD.

    Args:
        job: the launch.
        seats: the seats of its ranks.
        environments: the environments of its ranks.
        loop: served while the server starts.
        meanwhile: called once while the server starts.
        spare: a process that may become the server.
    """
    names = names_to_load(job, seats, environments)
    if not names:
        return None
    try:
        server = ForkServer(job.target, names, environments[0], spare)
    except OSError:
        return None  # not possible on this system
    try:
        meanwhile()
        if _becomes_ready(server, loop, min(job.timeout_s or _READY_S, job.hang_timeout_s or _READY_S, _READY_S)):
            return server
    except BaseException:
        server.close()
        raise
    server.close()
    return None


def _becomes_ready(server: ForkServer, loop: Loop, limit_s: float) -> bool:
    """Serve the loop until the server is ready; return whether it can fork ranks."""
    deadline = time.monotonic() + limit_s
    held: list[int] = []
    loop.watch(server.fileno(), server.listen)
    try:
        while server.reason is None and not ENDING.intersection(held) and time.monotonic() < deadline:
            loop.step(max(0.0, deadline - time.monotonic()))
            while loop.signals:  # take the signals out, or the loop would return at once every time
                held.append(loop.signals.popleft())
    finally:
        loop.forget(server.fileno())
        loop.signals.extend(number for number in held if number != signal.SIGCHLD)
    return server.reason == "" and not ENDING.intersection(held)


def _is_subreaper() -> bool:
    answer = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def _set_subreaper(*, on: bool) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def _prctl(option: int, value: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
