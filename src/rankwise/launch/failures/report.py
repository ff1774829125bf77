"""A rank's report about its own end: one JSON line, written by the rank and read by the supervisor."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType

FINISHED = b"finished "  # followed by the monotonic time; sent instead of a report when the program ended normally

# files with the launcher's frames around the user's code, cut from the head of a traceback
_LAUNCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  (text, as co_filename)
_IMPORT = importlib.__file__  # import_module
_START, _CALL = (os.path.join(_LAUNCH, name) for name in ("child.py", "functions/callee.py"))  # noqa: PTH118

_MOST_CHARACTERS = 100_000  # that are searched of a message, which may hold a whole array
# patterns for a message, compiled when they are used: the ranks do not use them
_LOST_PEER = (
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|closed by (the )?(remote )?peer|socket closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted|connect(ion)? failure|failed to connect"
    r"|ping failed|stop_waiting|no longer reachable|recvvalue failed|sendbytes failed"
)
_TIMEOUT = (
    r"timed out|timeout waiting|wait timeout|socket timeout|timeout after|watchdog caught collective"
    r"|did not arrive in time"
)
_OF_THE_NETWORK = (
    r"gloo|nccl|tcpstore|c10d|process ?group|dist(network|store|backend)?error|socket|connection|desyncerror|worlderror"
    r"|collective|rendezvous|brokenpipe"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """How a rank failed, as it reported itself.

    Attributes:
        rank: global rank.
        time_s: when the error reached the top of the program, monotonic clock.
        type: the exception's class, qualified unless builtin.
        message: the exception's text.
        causes: "type: message" of each exception it was raised from.
        traceback: formatted, without the frames of the launcher.
        exitcode: the exit code that the process will have.
        peers: ranks that the exception, or one that it was raised from, blames (`DesyncError.ranks`).
    """

    rank: int
    time_s: float
    type: str
    message: str
    causes: tuple[str, ...]
    traceback: str
    exitcode: int
    peers: tuple[int, ...] = ()

    @property
    def is_collateral(self) -> bool:
        """Whether the rank failed because it lost a peer, or because its wait for a peer timed out."""
        if self.peers and self.rank not in self.peers:
            return True
        of_network = [text for text in self._texts() if re.search(_OF_THE_NETWORK, text, re.IGNORECASE)]
        return any(re.search(f"{_LOST_PEER}|{_TIMEOUT}", text, re.IGNORECASE) for text in of_network)

    @property
    def is_timeout(self) -> bool:
        """Whether the rank's wait for a peer timed out; the peer may be alive."""
        return self.is_collateral and any(re.search(_TIMEOUT, text, re.IGNORECASE) for text in self._texts())

    def _texts(self) -> list[str]:
        return [text[:_MOST_CHARACTERS] for text in (f"{self.type}: {self.message}", *self.causes)]

    def to_json(self) -> bytes:
        """Return the report as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Report:
        """Parse a line from `to_json`."""
        fields = json.loads(line)
        fields["causes"], fields["peers"] = tuple(fields["causes"]), tuple(fields["peers"])
        return cls(**fields)


def make_report(error: BaseException, rank: int, exitcode: int) -> Report:
    """Describe `error`, which has reached the top of this rank's program."""
    causes: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and not any(cause is known for known in causes):
        causes.append(cause)
        cause = cause.__cause__
    return Report(
        rank=rank,
        time_s=time.monotonic(),
        type=_type_name(error),
        message=_text(error),
        causes=tuple(f"{_type_name(cause)}: {_text(cause)}" for cause in causes),
        traceback=_format(error),
        exitcode=exitcode,
        peers=next(filter(None, map(_blamed, (error, *causes))), ()),
    )


def _blamed(error: BaseException) -> tuple[int, ...]:
    try:
        ranks = error.ranks  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  (most have none; a broken property must not hide the failure)
        return ()
    return tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, (tuple, list)) else ()


def _type_name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in {"builtins", "__main__"} else f"{cls.__module__}.{cls.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  (a broken __str__ must not hide the failure)
        return f"<its message could not be formatted: {problem!r}>"


def _format(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(_without_ours(error.__traceback__))
        place = "".join(traceback.format_list([f for f in frames if not f.filename.startswith("<frozen")][-1:]))
        return f"{place}SystemExit: {_text(error)}\n"
    try:
        return "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))
    except Exception as problem:  # noqa: BLE001
        print(f"rankwise: a traceback could not be formatted: {problem!r}", file=sys.stderr)  # noqa: T201
        return f"{_type_name(error)}: {_text(error)}\n"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Drop the launcher's and runpy's frames from the head.

    If there are no others, drop all where a target cannot be found or compiled, and keep all where a call failed.
    """
    rest, called = trace, False
    while rest is not None:
        file = rest.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen runpy", "<frozen importlib")) and file not in {_START, _CALL, _IMPORT}:
            break
        called = called or file == _CALL
        rest = rest.tb_next
    return trace if rest is None and called else rest
