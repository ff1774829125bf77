"""`rankwise.run`, in the caller's process: start the supervisor's process, read its messages, receive the values."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pickle
import select
import signal
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from rankwise import errors
from rankwise.errors import ConfigError, Interrupted, LaunchError, RankFailure
from rankwise.launch.functions.callee import is_loading_main
from rankwise.launch.functions.service import receive, send
from rankwise.launch.hardware import MAX_RANKS, count_ranks

if TYPE_CHECKING:
    from rankwise.launch.functions.platforms import Platform

_FAREWELL_S = 60.0
_Streams = dict[int, tuple[IO[str], codecs.IncrementalDecoder]]  # descriptor to read -> where to write it


def run(
    fn: Callable[..., Any],
    *args: Any,
    num_ranks: int | str,
    max_restarts: int = 0,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    stall: float | None = None,
    binding: Literal["auto", "numa", "core", "none"] = "auto",
    ranks_per_gpu: int | None = None,
    tee: str = "auto",
    env: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on every one of `num_ranks` new processes and return its values by rank.

    The ranks are new processes on this machine, never forks of this one. A small supervisor process watches them: when
    this process ends, even by SIGKILL, no rank is left running. `fn` gets its rank and device with `rankwise.bind()`.
    A function that a fresh interpreter can import is sent by name. If it is defined in the main script, put that
    script's own actions under `if __name__ == "__main__":`. Lambdas, closures and notebook functions are sent by value
    if cloudpickle is installed.

    Args:
        fn: what every rank calls.
        *args: picklable arguments, the same for all ranks.
        num_ranks: number of processes, >= 1; "auto": one per visible GPU, or 1 with a message if there is none; "gpu":
            one per GPU; "cpu": one per usable core.
        max_restarts: how often all ranks are restarted after a failure.
        timeout: limit in seconds for one attempt; after it the rank that blocks the others is named; None: no limit.
        hang_timeout: stop all ranks and name the culprit after so many seconds without progress of any rank; None: 1800
            once a rank has called `rankwise.vitals.beat`; 0: never.
        stall: after so many seconds without progress, print where every rank is and which one blocks the others, and go
            on; None: 180 once a rank has begun a collective or called `beat`; 0: never.
        binding: cores of a rank: those near its GPU or its NUMA node ("numa"), own ones ("core"), all ("none"), "auto".
        ranks_per_gpu: ranks that share a GPU; None: one.
        tee: which output reaches stdout and stderr, as `rankwise run --tee`: "auto", "all", "main", "none".
        env: additional environment variables for the ranks.
        **kwargs: picklable keyword arguments, the same for all ranks.

    Returns:
        The values of `fn`, by rank.

    Raises:
        RankFailure: a rank raised, exited, was killed or hung; the error holds its traceback.
        ConfigError: an argument is invalid, or cannot be pickled.
        LaunchError: the ranks could not be started, or a value could not be read back.
    """
    if isinstance(num_ranks, str):
        num_ranks = count_ranks(num_ranks, "num_ranks", ranks_per_gpu=ranks_per_gpu)
    options = {
        "num_ranks": num_ranks,
        "max_restarts": max_restarts,
        "timeout_s": timeout,
        "hang_timeout_s": hang_timeout,
        "stall_s": stall,
        "binding": binding,
        "ranks_per_gpu": ranks_per_gpu,
        "env": dict(env or {}),
    }
    return call_ranks(fn, args, kwargs, options, tee=tee)


def call_ranks(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    tee: str,
    store_file: str | None = None,
    platform: Platform | None = None,
) -> list[Any]:
    """Run a call on ranks and return their values.

    `options` are fields of the `Job` as JSON has them, with `num_ranks`. The ranks meet at a port, or with a
    `store_file` there ("": in a file of the launch itself). With a `platform` each rank starts as a fresh interpreter.

    Raises:
        RankFailure: a rank failed.
        ConfigError: an option is invalid, or the call cannot be sent.
        LaunchError: no ranks could be started, or a value cannot be read, or this is a rank that imports the main
            script.
    """
    if is_loading_main():
        raise LaunchError(
            "a rank reached another launch while importing the main script: put the launch under "
            'if __name__ == "__main__":'
        )
    num_ranks = options["num_ranks"]
    num_ranks = num_ranks.item() if hasattr(num_ranks, "item") else num_ranks  # of NumPy
    if not isinstance(num_ranks, int) or not 1 <= num_ranks <= MAX_RANKS:
        raise ConfigError(f"num_ranks must be an integer from 1 to {MAX_RANKS:,}, got {num_ranks!r}")
    code = None if platform is not None or options.get("env") or num_ranks == 1 else getattr(fn, "__code__", None)
    hint = (code.co_filename, code.co_name) if code is not None else None  # for ranks that may be forked
    _fill_standard_streams()
    line, far = socket.socketpair()
    for end in (line, far):
        end.setblocking(True)  # noqa: FBT003  (also where the program has called socket.setdefaulttimeout)
    with line:
        process, streams = _start_service(far, hint)
        try:
            # pack the call while the supervisor's process starts
            from rankwise.launch.functions.pickled_call import pack_call
            from rankwise.launch.show import parse_show

            parse_show(tee).check(num_ranks)
            call, target = pack_call(fn, args, kwargs, platform=platform)
            request = {"options": dict(options), "target": target, "tee": tee, "store_file": store_file}
            values = _exchange(line, process, streams, request, call)
        finally:
            line.close()  # ends a supervisor that has not received its call
            _end(process, streams)
    return [read_value(rank, value) for rank, value in enumerate(values)]


def _fill_standard_streams() -> None:
    """Open /dev/null for standard streams that the program has closed: else a connection would get their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)  # noqa: FBT003
    os.close(fd)


def _exchange(
    line: socket.socket,
    process: subprocess.Popen[bytes],
    streams: _Streams,
    request: Mapping[str, Any],
    call: bytes,
) -> list[bytes]:
    """Send the call to the supervisor, copy the ranks' output, and return their values."""
    is_sent = False
    try:
        send(line, json.dumps(request, default=_plain).encode())
        send(line, call)
        is_sent = True
        _raise_failure(_listen(line, streams))
        return [receive(line) for _ in range(request["options"]["num_ranks"])]
    except KeyboardInterrupt:
        if is_sent:  # else the supervisor still waits for the call, and ends when the connection is closed
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(EOFError, OSError):
                _listen(line, streams)
        raise
    except (EOFError, OSError) as error:
        raise LaunchError(f"the supervisor of the ranks exited with {process.wait()}, and its ranks with it") from error


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one that JSON knows."""
    if hasattr(value, "item"):
        return value.item()
    raise ConfigError(f"an option of a launch must be a number or text, got {value!r} ({type(value).__name__})")


def _start_service(far: socket.socket, hint: tuple[str, str] | None) -> tuple[subprocess.Popen[bytes], _Streams]:
    """Start the supervisor in its own session: only this process gets Ctrl-C, and forwards it.

    Returns:
        The process, and the streams to copy: the ranks cannot inherit a sys.stdout or sys.stderr that replaces the
        real stream (notebook, test).
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    command = [sys.executable, *flags, "-P", "-m", "rankwise.launch.functions.service", str(far.fileno())]
    sinks = [None if _is_real(stream, fd) else stream for stream, fd in ((sys.stdout, 1), (sys.stderr, 2))]
    out, err = (None if sink is None else subprocess.PIPE for sink in sinks)
    env = dict(os.environ)
    if "inline" in env.get("MPLBACKEND", ""):
        env["MPLBACKEND"] = "agg"  # a notebook's backend works only in its kernel
    home, known = str(Path(errors.__file__).parents[1]), env.get("PYTHONPATH", "")
    if home not in [*known.split(os.pathsep), *site.getsitepackages(), site.getusersitepackages()]:
        # a fresh interpreter may not find this package: by a relative path, or one that the program has added
        env["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else home
    # start it with SIGINT blocked: it unblocks the signal once its handler is set; before, SIGINT would kill it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with far, contextlib.ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        process = subprocess.Popen(  # noqa: S603
            [*command, *(hint or ())],
            pass_fds=(far.fileno(),),
            start_new_session=True,
            stdin=subprocess.DEVNULL if out is not None and "ipykernel" in sys.modules else None,  # no stdin there
            stdout=out,
            stderr=err,
            env=env,
        )
    pairs = zip((process.stdout, process.stderr), sinks, strict=True)
    # a read may end in the middle of a character
    decoder = codecs.getincrementaldecoder("utf-8")
    return process, {pipe.fileno(): (sink, decoder("replace")) for pipe, sink in pairs if pipe and sink is not None}


def _is_real(stream: Any, fd: int) -> bool:
    try:
        return bool(stream is None or stream.fileno() == fd)
    except (OSError, ValueError, AttributeError):
        return False


def _copy(fd: int, sink: IO[str], decoder: codecs.IncrementalDecoder) -> bool:
    """Copy the available output to a stream without a file descriptor; return False at the end."""
    data = os.read(fd, 1 << 16)
    text = decoder.decode(data, final=not data)
    try:
        sink.write(text)
    except UnicodeEncodeError:  # of a file in an encoding that lacks a character
        sink.write(text.encode("ascii", "backslashreplace").decode())
    sink.flush()
    return bool(data)


def _listen(line: socket.socket, streams: _Streams) -> dict[str, Any]:
    """Copy the ranks' output to this process's stdout and stderr until the answer arrives."""
    while True:
        waiting = select.poll()
        for fd in (line.fileno(), *streams):
            waiting.register(fd, select.POLLIN)
        for ready, _ in waiting.poll():
            if ready == line.fileno():
                return json.loads(receive(line))  # type: ignore[no-any-return]
            if not _copy(ready, *streams[ready]):
                del streams[ready]


def _end(process: subprocess.Popen[bytes], streams: _Streams) -> None:
    """Copy the last output and wait for the supervisor, which ends once this end of the connection is closed."""
    deadline, waiting = time.monotonic() + _FAREWELL_S, select.poll()
    for fd in streams:
        waiting.register(fd, select.POLLIN)
    while streams and time.monotonic() < deadline:
        has_ended = process.poll() is not None
        ready = waiting.poll(0 if has_ended else 100)
        for fd, _ in ready:
            if not _copy(fd, *streams[fd]):
                waiting.unregister(fd)
                del streams[fd]
        if has_ended and not ready:
            break  # a process that a rank has left behind still holds the pipe
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_FAREWELL_S)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _raise_failure(answer: Mapping[str, Any]) -> None:
    if "error" in answer:
        raise getattr(errors, answer["kind"], LaunchError)(answer["error"])
    if answer["interrupted"] == signal.SIGINT:
        raise KeyboardInterrupt
    if answer["interrupted"] is not None:
        raise LaunchError(f"the ranks were stopped by {signal.Signals(answer['interrupted']).name}")
    if answer["again"]:
        raise Interrupted("the ranks have saved and ended as requested")
    failure = answer["failure"]
    if failure is not None:
        raise RankFailure(answer["text"], rank=failure["rank"], exitcode=failure["status"], traceback=failure["detail"])
    if answer["missing"]:
        read_value(answer["missing"][0], None)


def read_value(rank: int, value: bytes | None) -> Any:
    """Unpickle the value of a rank; None: it left none.

    Raises:
        RankFailure: there is no value.
        LaunchError: it cannot be read here.
    """
    if value is None:
        raise RankFailure(f"rank {rank} exited with 0 before it returned a value (sys.exit?)", rank=rank, exitcode=0)
    # the ranks import the main program under this name, as multiprocessing does; pickled values refer to it
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    try:
        return pickle.loads(value)  # noqa: S301  (from our own ranks, in a folder of this user)
    except Exception as error:
        raise LaunchError(f"the value of rank {rank} cannot be read here: {type(error).__name__}: {error}") from error
