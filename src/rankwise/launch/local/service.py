"""The supervisor's process under `rankwise.run`: `python -m rankwise.launch.local.service FD`.

It is separate from the caller, so that what the caller has loaded (torch, CUDA, threads) does not matter, and so that
the ranks end when the caller is killed: the connection between the two breaks.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise import vitals
from rankwise.errors import RankwiseError
from rankwise.launch.bound import value_path
from rankwise.launch.job import Job
from rankwise.launch.local.link import Link
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.supervisor import supervise
from rankwise.launch.show import parse_show
from rankwise.launch.stage import Stage
from rankwise.launch.target import Target

if TYPE_CHECKING:
    from rankwise.launch.outcome import Outcome

__all__: list[str] = []


def main(fd: int) -> None:
    """Receive options and call, run the ranks, send back how it went and the values by rank."""
    link = Link(fd)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the caller until we are ready for it
        try:
            options, call = json.loads(link.receive()), link.receive()
        except EOFError:
            return  # the caller has gone, or given up
        folder = vitals.make_folder(in_memory=False)
        stack.callback(vitals.remove_folder, folder)
        (folder / "call").write_bytes(call)
        loop.watch(fd, lambda: _caller_is_gone(loop, fd))
        try:
            outcome = supervise(_job(options, folder), Stage(loop=loop, tell_last=False))
        except RankwiseError as error:
            link.send(json.dumps({"error": str(error), "kind": type(error).__name__}).encode())
            return
        try:
            _answer(link, outcome, folder, options["num_ranks"])
        except OSError:
            sys.exit(1)  # nobody is there to hear it


def _caller_is_gone(loop: Loop, fd: int) -> None:
    """The caller sends nothing while the ranks run: when there is something to read, it is the end."""
    loop.forget(fd)
    loop.signals.append(signal.SIGTERM)


def _job(options: dict[str, Any], folder: Path) -> Job:
    return Job(
        target=_target(options, folder),
        num_ranks=options["num_ranks"],
        max_restarts=options["max_restarts"],
        timeout_s=options["timeout_s"],
        hang_timeout_s=options.get("hang_timeout_s"),
        stall_s=options.get("stall_s"),
        binding=options.get("binding", "auto"),
        ranks_per_gpu=options.get("ranks_per_gpu"),
        show=parse_show(options["tee"]),
        env=options["env"] | _meeting(options.get("store_file"), folder),
        log_dir=None if options.get("log_dir") is None else Path(options["log_dir"]),
        master_addr=options["master_addr"],
        master_port=options["master_port"],
    )


def _target(options: dict[str, Any], folder: Path) -> Target:
    main, function, path = options.get("main", ""), options.get("function", ""), options.get("path", [])
    return Target(kind="call", name=str(folder / "call"), main=main, function=function, path=tuple(path))


def _meeting(store_file: str | None, folder: Path) -> dict[str, str]:
    """Return the variable of ranks that meet through a file: the one that is named, or one of our own ("")."""
    return {} if store_file is None else {"RANKWISE_STORE_FILE": store_file or str(folder / "meeting")}


def _answer(link: Link, outcome: Outcome, folder: Path, num_ranks: int) -> None:
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
    link.send(json.dumps(answer).encode())
    if failure is None and outcome.interrupted is None and not missing:
        for rank in range(num_ranks):
            link.send(value_path(folder, rank).read_bytes())


if __name__ == "__main__":
    main(int(sys.argv[1]))
