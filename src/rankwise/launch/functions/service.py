"""The supervisor's process under `rankwise.run`: `python -m rankwise.launch.functions.service FD [FILE FUNCTION]`.

It is a separate process, so that it has none of the caller's state (torch, CUDA, threads), and so that the ranks end
when the caller is killed: then the connection between the two breaks. It first starts the process that will fork the
ranks, which loads at the same time; therefore most modules are imported late here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rankwise.launch.local.forks.spare import start_spare

if TYPE_CHECKING:
    from pathlib import Path

    from rankwise.launch.failures.outcome import Outcome
    from rankwise.launch.functions.channel import Channel
    from rankwise.launch.job import Job
    from rankwise.launch.local.forks.spare import Spare
    from rankwise.launch.local.loop import Loop

__all__: list[str] = []


def main(fd: int, hint: tuple[str, ...] = ()) -> None:
    """Receive the options and the call, run the ranks, send back the outcome and the values by rank.

    Args:
        fd: the connection to the caller.
        hint: file and name of the function, if its ranks may be forked.
    """
    os.set_inheritable(fd, False)  # noqa: FBT003
    spare = start_spare(*hint) if hint else None
    try:
        _serve(fd, spare)
    finally:
        if spare is not None:
            spare.close()


def _serve(fd: int, spare: Spare | None) -> None:
    import contextlib
    import json
    import signal

    from rankwise import vitals
    from rankwise.errors import RankwiseError
    from rankwise.launch.functions.channel import Channel
    from rankwise.launch.local.loop import Loop
    from rankwise.launch.local.supervisor import supervise

    channel = Channel(fd)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the caller started this process with it blocked
        try:
            request, call = json.loads(channel.receive()), channel.receive()
        except EOFError:
            return  # the caller has ended or given up
        folder = vitals.make_folder(in_memory=False)
        stack.callback(vitals.remove_folder, folder)
        (folder / "call").write_bytes(call)
        loop.watch(fd, lambda: _caller_is_gone(loop, fd))
        try:
            outcome = supervise(_job(request, folder), loop=loop, spare=spare, tell_last=False)
        except RankwiseError as error:
            channel.send(json.dumps({"error": str(error), "kind": type(error).__name__}).encode())
            return
        try:
            _answer(channel, outcome, folder, request["options"]["num_ranks"])
        except OSError:
            sys.exit(1)  # there is no caller to report to


def _caller_is_gone(loop: Loop, fd: int) -> None:
    """End the ranks: the caller sends nothing while they run, so a readable connection means that it has ended."""
    import signal

    loop.forget(fd)
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
    call = Target(
        kind="call",
        name=str(folder / "call"),
        main=target["main"],
        function=target["function"],
        path=tuple(target["path"]),
    )
    return Job(target=call, show=parse_show(request["tee"]), **options)


def _answer(channel: Channel, outcome: Outcome, folder: Path, num_ranks: int) -> None:
    import json

    from rankwise.launch.functions.callee import value_path

    failure = outcome.failure
    answer: dict[str, Any] = {
        "interrupted": outcome.interrupted,
        "text": outcome.text,
        "failure": None,
        "again": outcome.again,
    }
    if failure is not None:
        answer["failure"] = {"rank": failure.rank, "status": failure.status, "detail": failure.detail}
    missing = [rank for rank in range(num_ranks) if not value_path(folder, rank).exists()]
    answer["missing"] = missing
    channel.send(json.dumps(answer).encode())
    if failure is None and outcome.interrupted is None and not missing:
        for rank in range(num_ranks):
            channel.send(value_path(folder, rank).read_bytes())


if __name__ == "__main__":
    main(int(sys.argv[1]), tuple(sys.argv[2:]))
