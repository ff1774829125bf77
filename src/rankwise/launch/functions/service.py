"""The supervisor's process under `rankwise.run`: `python -m rankwise.launch.functions.service FD [FILE FUNCTION]`.

It is a separate process, so that it has none of the caller's state (torch, CUDA, threads), and so that the ranks end
when the caller is killed: then the connection between the two breaks. It first starts the process that will fork the
ranks, which loads at the same time; therefore most modules are imported late here.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from rankwise.launch.local.forks.process import start_early

if TYPE_CHECKING:
    from pathlib import Path

    from rankwise.launch.failures.outcome import Outcome
    from rankwise.launch.job import Job
    from rankwise.launch.local.forks.process import ServerProcess
    from rankwise.launch.local.loop import Loop

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


def main(fd: int, hint: tuple[str, ...] = ()) -> None:
    """Receive the options and the call, run the ranks, send back the outcome and the values by rank."""
    os.set_inheritable(fd, False)  # noqa: FBT003
    early = start_early(*hint) if hint else None
    try:
        _serve(fd, early)
    finally:
        if early is not None:
            early.close()


def _serve(fd: int, early: ServerProcess | None) -> None:
    import contextlib
    import json
    import signal

    from rankwise import vitals
    from rankwise.errors import RankwiseError
    from rankwise.launch.functions.callee import value_path
    from rankwise.launch.local.loop import Loop
    from rankwise.launch.local.supervisor import supervise

    with contextlib.ExitStack() as stack:
        line = stack.enter_context(socket.socket(fileno=fd))
        loop = stack.enter_context(Loop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the caller started this process with it blocked
        try:
            request, call = json.loads(receive(line)), receive(line)
        except EOFError:
            return  # the caller has ended or given up
        try:
            folder = vitals.make_folder(in_memory=False)
            stack.callback(vitals.remove_folder, folder)
            (folder / "call").write_bytes(call)
            loop.watch(fd, lambda: _caller_is_gone(loop, fd))
            outcome = supervise(_job(request, folder), loop=loop, early=early, tell_last=False)
        except (RankwiseError, OSError) as error:  # a full disk, no folder for temporary files
            send(line, json.dumps({"error": str(error), "kind": type(error).__name__}).encode())
            return
        values = [value_path(folder, rank) for rank in range(request["options"]["num_ranks"])]
        missing = [rank for rank, path in enumerate(values) if not path.exists()]
        try:
            send(line, json.dumps({**_told(outcome), "missing": missing}).encode())
            if outcome.failure is None and outcome.interrupted is None and not missing:
                for path in values:
                    send(line, path.read_bytes())
        except OSError:
            sys.exit(1)  # there is no caller to report to


def _caller_is_gone(loop: Loop, fd: int) -> None:
    """End the ranks: the caller sends nothing while they run, so a readable connection means that it has ended."""
    import signal

    loop.remove(fd)
    loop.signals.append(signal.SIGTERM)


def _job(request: dict[str, Any], folder: Path) -> Job:
    from pathlib import Path

    from rankwise.launch.job import Job
    from rankwise.launch.show import parse_show
    from rankwise.launch.target import Target

    options, target, store_file = request["options"], request["target"], request["store_file"]
    if options.get("log_dir") is not None:
        options["log_dir"] = Path(options["log_dir"])
    if store_file is not None:
        options["env"] = {"RANKWISE_STORE_FILE": store_file or str(folder / "meeting")}
    call = Target(kind="call", name=str(folder / "call"), **{**target, "path": tuple(target["path"])})
    return Job(target=call, show=parse_show(request["tee"]), **options)


def _told(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    return {
        "interrupted": outcome.interrupted,
        "again": outcome.again,
        "text": outcome.text,
        "failure": failure and {"rank": failure.rank, "status": failure.status, "detail": failure.detail},
    }


def send(line: socket.socket, message: bytes) -> None:
    """Send a message of any length, uninterpreted.

    Raises:
        OSError: the other end is closed.
    """
    line.sendall(len(message).to_bytes(_LENGTH_BYTES, "big"))
    line.sendall(message)


def receive(line: socket.socket) -> bytes:
    """Wait for a message and return it.

    Raises:
        EOFError: the other end is closed.
        OSError: the connection is broken.
    """
    return _read(line, int.from_bytes(_read(line, _LENGTH_BYTES), "big"))


def _read(line: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = line.recv(min(num_bytes, _READ_BYTES))
        if not part:
            raise EOFError("the other end of the connection is closed")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main(int(sys.argv[1]), tuple(sys.argv[2:]))
