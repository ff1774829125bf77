"""`run_ranks`: call a function on N real gloo ranks, which are reused for later calls.

Starting a rank takes seconds (importing torch, meeting the others), so the processes are kept in a pool by world size.
A call that fails or times out closes its pool: a gloo group is not usable after one of its ranks has left it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rankwise._process.place import Place
from rankwise.errors import RankwiseError
from rankwise.testing.held_ports import hold_port
from rankwise.world.store_channel import store_world
from rankwise.world.value import World

_STACKS_S = 20.0  # how long to wait for the stacks of late ranks, on a busy machine
_QUIET_S, _POLL_S = 0.3, 0.02


class RanksFailedError(AssertionError):
    """Some ranks of a `run_ranks` call raised, ended or timed out.

    Attributes:
        tracebacks: traceback text (or how the rank ended) by rank, failing ranks only, in order of failure.
    """

    def __init__(self, message: str, tracebacks: Mapping[int, str]) -> None:
        super().__init__(message)
        self.tracebacks = dict(tracebacks)


@dataclass
class _Pool:
    """The processes of one world size, each with a socket to this process and a file for its output."""

    num_ranks: int
    folder: tempfile.TemporaryDirectory[str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    links: list[connection.Connection] = field(default_factory=list)

    @classmethod
    def start(cls, num_ranks: int) -> _Pool:
        pool = cls(num_ranks, tempfile.TemporaryDirectory(prefix="rankwise-ranks-"))
        root = Path(pool.folder.name)
        with connection.Listener(str(root / "socket"), family="AF_UNIX", backlog=num_ranks) as listener:
            for rank in range(num_ranks):
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": "1",  # the same sums, however many cores the machine has
                    "RANKWISE_TEST_RANK": f"{rank}:{num_ranks}:{root}",
                }
                with (root / f"rank-{rank}.log").open("wb") as log:
                    pool.processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "rankwise.testing.rank"],
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                        )
                    )
            links: dict[int, connection.Connection] = {}
            for _ in range(num_ranks):
                link = listener.accept()
                links[link.recv()] = link  # ranks connect in any order, so each sends its number first
        pool.links = [links[rank] for rank in range(num_ranks)]
        return pool

    def log_tail(self, rank: int, num_lines: int = 60) -> str:
        """Return the end of a rank's output."""
        text = self._log(rank).read_text(errors="replace")
        return "\n".join(text.splitlines()[-num_lines:])

    def _log(self, rank: int) -> Path:
        return Path(self.folder.name) / f"rank-{rank}.log"

    def write_stacks(self, ranks: Sequence[int]) -> None:
        """Make ranks write their stacks into their logs, and wait until these have stopped growing."""
        deadline = time.monotonic() + _STACKS_S
        sizes = {rank: self._log(rank).stat().st_size for rank in ranks}
        for rank in ranks:
            self.processes[rank].send_signal(signal.SIGUSR2)  # faulthandler writes them
        for rank, before in sizes.items():
            size, grown_s = before, time.monotonic()
            while (now := time.monotonic()) < deadline and (size == before or now - grown_s < _QUIET_S):
                time.sleep(_POLL_S)
                if (new_size := self._log(rank).stat().st_size) != size:
                    size, grown_s = new_size, now

    def close(self) -> None:
        """Kill the ranks (they need no orderly shutdown) and remove the folder."""
        for link in self.links:
            link.close()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.folder.cleanup()


_pools: dict[int, _Pool] = {}


def close_pools() -> None:
    """Stop all ranks of earlier calls."""
    while _pools:
        _pools.popitem()[1].close()


atexit.register(close_pools)


def run_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any, timeout: float = 240.0) -> list[Any]:
    """Call ``fn(world, *args)`` on every one of `num_ranks` gloo ranks and return the results by rank.

    The function and the module that defines it are sent by value: local functions, lambdas and closures work.
    The ranks are separate processes with one thread each and a process group that is already initialised.

    Args:
        fn: called with the rank's `World` first.
        num_ranks: number of processes.
        *args: picklable arguments, the same for all ranks.
        timeout: seconds after which the call fails and names the ranks that are late, with their stacks.

    Raises:
        RanksFailedError: a rank raised, ended or was late; the message has the tracebacks in order of failure.
    """
    if num_ranks not in _pools:
        _pools[num_ranks] = _Pool.start(num_ranks)
    pool = _pools[num_ranks]
    payload = _pickle_by_value(fn, args)
    try:
        for link in pool.links:
            link.send_bytes(payload)
        return _collect(pool, timeout)
    except (RanksFailedError, OSError):
        # the other ranks may hang in a collective of this call: the next one starts new processes
        _pools.pop(num_ranks).close()
        raise


def _pickle_by_value(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    import cloudpickle

    module = sys.modules.get(fn.__module__)
    if module is None or fn.__module__.startswith("rankwise.") or fn.__module__ == "__main__":
        return bytes(cloudpickle.dumps((fn, args)))
    # the ranks cannot import a test module: its name is known to pytest alone
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((fn, args)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _collect(pool: _Pool, timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = {link: rank for rank, link in enumerate(pool.links)}
    deadline = time.monotonic() + timeout
    while waiting:
        # after one rank has failed, the others may wait for it forever: give them a moment, then stop
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for link in ready:
            rank = waiting.pop(link)  # type: ignore[call-overload]
            try:
                good, value = pickle.loads(link.recv_bytes())  # type: ignore[union-attr]  # noqa: S301
            except (EOFError, OSError):
                good, value = False, _describe_death(pool, rank)
            if good:
                results[rank] = value
            else:
                failures[rank] = value
                deadline = min(deadline, time.monotonic() + 5.0)
    if waiting or failures:
        raise _failure(pool, failures, sorted(waiting.values()), timeout)
    return [results[rank] for rank in range(pool.num_ranks)]


def _describe_death(pool: _Pool, rank: int) -> str:
    return f"the process ended with {pool.processes[rank].wait()}; its last output:\n{pool.log_tail(rank)}"


def _failure(pool: _Pool, failures: dict[int, str], late: list[int], timeout: float) -> RanksFailedError:
    pool.write_stacks(late)
    for rank in late:
        cause = "gave no result after another rank had failed" if failures else f"gave no result within {timeout} s"
        failures.setdefault(rank, f"{cause}; its stacks:\n{pool.log_tail(rank)}")
    text = "\n".join(f"--- rank {rank} of {pool.num_ranks}:\n{trace}" for rank, trace in failures.items())
    return RanksFailedError(f"{len(failures)} of {pool.num_ranks} ranks failed\n{text}", failures)


def run_over_store(num_ranks: int, body: Callable[[World], Any], port: int | None = None) -> list[Any]:
    """Run a function on several ranks, which are threads of this process connected by a store (see `store_world`).

    Args:
        num_ranks: number of ranks.
        body: the function; each rank calls it with its world.
        port: port of the store; None = a free one.

    Returns:
        By rank, the value of the function, or the rankwise error that it or the meeting raised.
    """
    meet_at, ends = port or hold_port(), dict[int, Any]()

    def one(rank: int) -> None:
        place = Place(rank=rank, world_size=num_ranks, master_addr="127.0.0.1", master_port=meet_at)
        try:
            with store_world(place) as world:
                ends[rank] = body(world)
        except RankwiseError as error:
            ends[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [ends[rank] for rank in range(num_ranks)]
