"""The start of every collective: all ranks exchange frames, and go on if all make the same call without an error.

A frame identifies the call by bytes that can be compared, says whether the rank has an error, and holds a readable text
and the payload. Over a process group it has a fixed size, with up to `INLINE` bytes of payload, so that only a large
call needs a second message; over keys it holds all of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn, TypeVar

from rankwise.errors import ConfigError, DesyncError, WorldError
from rankwise.world.collectives.channel import Channel, KeyChannel

if TYPE_CHECKING:
    from rankwise.world.value import World

_MAGIC = b"RKW2"
# magic, number of the call, op, reduce op, root, hash of the tree's structure
_IDENTITY = struct.Struct("<4sQ20s4si16s")
_REST = struct.Struct("<B8sHQ")  # error flag, hash of the caller's place, sizes of the text and of the whole payload
_TEXT = 431
INLINE = 1024
FRAME_BYTES = _IDENTITY.size + _REST.size + _TEXT + INLINE
_PACKAGE = str(PurePath(__file__).parents[2]) + os.sep
_CONTEXTLIB = contextlib.__file__  # its frames are between a `with` statement and our generator
_OPS = ("sum", "mean", "min", "max")
# the argument for the single rank that sends or receives
_ROOTS = {
    "broadcast": "src",
    "broadcast_object": "src",
    "from_main": "src",
    "gather": "dst",
    "gather_object": "dst",
    "reduce": "dst",
}
# calls without values, which a skipped call could not mix up; often written in both branches of an `if`
_ANY_PLACE = frozenset({"barrier", "raise_together", "subgroup"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a collective.

    Attributes:
        op: its name.
        place: file and line of the caller, and the public name that it called.
        reduce: its reduce op, "" if there is none.
        root: the single rank that sends or receives, -1 if there is none.
    """

    op: str
    place: str
    reduce: str = ""
    root: int = -1

    @property
    def title(self) -> str:
        """Return the call as in source code."""
        root = [f"{_ROOTS.get(self.op, 'dst')}={self.root}"] * (self.root >= 0)
        return f"{self.op}({', '.join([self.reduce] * bool(self.reduce) + root)}) at {self.place}"

    def check(self, world_size: int) -> None:
        """Check root and reduce op.

        Raises:
            ConfigError: there is no such rank or op.
        """
        if self.op in _ROOTS and not 0 <= self.root < world_size:
            raise ConfigError(
                f"{_ROOTS[self.op]}={self.root} is not a rank of this world: expected 0 to {world_size - 1}"
            )
        if self.op.endswith("reduce") and self.reduce not in _OPS:
            raise ConfigError(f"the reduce op must be one of {', '.join(_OPS)}, got {self.reduce!r}")


@dataclass(frozen=True, slots=True)
class Frame:
    """A received frame.

    Attributes:
        identity: bytes that must be equal on all ranks.
        valid: whether the bytes are a frame.
        number: number of the sender's call in its group.
        failed: whether the sender has an error; then the payload is its message.
        place: hash of the sender's call place.
        text: the sender's call in readable form.
        payload: the payload, or its beginning.
        payload_bytes: size of the whole payload.
    """

    identity: bytes
    valid: bool
    number: int
    failed: bool
    place: bytes
    text: str
    payload: memoryview
    payload_bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether it holds the whole payload."""
        return len(self.payload) == self.payload_bytes


def encode_frame(
    call: Call,
    number: int,
    *,
    payload: bytes,
    payload_bytes: int,
    structure: str = "",
    failed: bool = False,
    has_one_size: bool = True,
) -> bytes:
    """Return the frame; of one size it is `FRAME_BYTES` long, and a longer payload is cut to its beginning."""
    text = (f"{call.title} of {structure}" if structure else call.title).encode(errors="replace")[:_TEXT]
    digest = hashlib.blake2b(structure.encode(), digest_size=16).digest()
    head = _IDENTITY.pack(_MAGIC, number, call.op.encode(), call.reduce.encode(), call.root, digest)
    body = payload[:INLINE].ljust(INLINE, b"\0") if has_one_size else payload
    where = call.place.rpartition("/")[2]  # without the folder, as each machine may run its own copy
    place = hashlib.blake2b(os.fsencode(where), digest_size=8).digest()  # the name of a file need not be UTF-8
    return head + _REST.pack(failed, place, len(text), payload_bytes) + text.ljust(_TEXT, b"\0") + body


def decode_frame(raw: memoryview) -> Frame:
    """Parse a frame."""
    magic, number, *_ = _IDENTITY.unpack_from(raw)
    failed, place, text_bytes, payload_bytes = _REST.unpack_from(raw, _IDENTITY.size)
    text_start = _IDENTITY.size + _REST.size
    start = text_start + _TEXT
    return Frame(
        identity=bytes(raw[: _IDENTITY.size]),
        valid=magic == _MAGIC,
        number=number,
        failed=bool(failed),
        place=place,
        text=bytes(raw[text_start : text_start + min(text_bytes, _TEXT)]).decode(errors="replace"),
        payload=raw[start : start + payload_bytes],
        payload_bytes=payload_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A rank's contribution to a call: bytes that are there already, or none; a subclass may make them when asked.

    Attributes:
        structure: structure of its tree; must be equal on all ranks.
        data: its payload.
    """

    structure: str = ""
    data: bytes = b""

    @property
    def payload_bytes(self) -> int:
        """Return the size of its payload."""
        return len(self.data)

    def payload(self) -> bytes:
        """Return the payload, or at least the beginning that goes into the frame."""
        return self.data


def call_place() -> str:
    """Return file and line of the user's code that made this call, and the public name that it called."""
    frame, name = sys._getframe(1), ""  # noqa: SLF001  (a traceback object would cost 100 times as much, at every call)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if path.startswith(_PACKAGE):
            name = frame.f_code.co_qualname
        elif path != _CONTEXTLIB:
            break
        frame = frame.f_back
    place = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
    return place if not name or name.startswith("World.") else f"{place} (in {name})"


@functools.cache
def _short(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


ContributionT = TypeVar("ContributionT", bound=Contribution)
T = TypeVar("T")


def exchange(world: World, call: Call, contribute: Callable[[], ContributionT]) -> tuple[ContributionT, list[Frame]]:
    """Exchange frames with all ranks of the world; return this rank's contribute and the frames by rank.

    Args:
        world: a world with a group.
        call: this call.
        contribute: returns this rank's contribute; if it raises, every rank raises.

    Raises:
        Exception: the error that `contribute` raised on this rank.
        DesyncError: another rank failed, or the ranks make different calls. The group stays usable.
        WorldError: the group is lost: a rank died or is late by more than the timeout.
    """
    channel = world.channel
    assert channel is not None
    if channel.broken:
        raise WorldError(f"{call.title}: the group cannot be used: {channel.broken}")
    channel.calls += 1
    ready, own_error, raw = _own_frame(call, channel, contribute)
    frames = [decode_frame(memoryview(frame)) for frame in run_transport(world, call, lambda: channel.exchange(raw))]
    if own_error is not None:
        raise own_error
    identity = frames[world.rank].identity
    if any(frame.failed or frame.identity != identity for frame in frames):
        _raise_difference(world, frames)
    _check_places(world, call, frames)
    assert ready is not None
    return ready, frames


def _own_frame(
    call: Call, channel: Channel | KeyChannel, contribute: Callable[[], ContributionT]
) -> tuple[ContributionT | None, Exception | None, bytes]:
    """Return this rank's contribute and its frame; send any error to the other ranks, as they would wait otherwise."""
    encode = functools.partial(encode_frame, call, channel.calls, has_one_size=isinstance(channel, Channel))
    try:
        ready = contribute()
        raw = encode(structure=ready.structure, payload=ready.payload(), payload_bytes=ready.payload_bytes)
    except Exception as error:  # noqa: BLE001  (told to all ranks, then raised)
        text = _text_of(error)
        return None, error, encode(payload=text, payload_bytes=len(text), failed=True)
    return ready, None, raw


def _text_of(error: Exception) -> bytes:
    try:
        return f"{type(error).__name__}: {error}".encode(errors="replace")
    except Exception:  # noqa: BLE001  (the user's __str__ is broken, too)
        return f"{type(error).__name__} (its text cannot be made)".encode()


def run_transport(world: World, call: Call, transport: Callable[[], T]) -> T:
    """Run a collective of torch or JAX and return its result; if it fails, value the group as broken.

    Raises:
        WorldError: it failed; names the rank, the call and the reason.
    """
    channel = world.channel
    assert channel is not None
    try:
        return transport()
    except RuntimeError as error:
        rank = world.global_ranks[world.rank]
        channel.broken = f"{call.title} failed on rank {rank}: {error}"
        raise WorldError(
            f"rank {rank} lost the other ranks in {call.title} (call {channel.calls} of this group): "
            f"{_loss(error, channel)}; its own output says why. The group cannot be used any more"
        ) from error


def _loss(error: RuntimeError, channel: Channel | KeyChannel) -> str:
    reason = str(error).partition(". This is typically")[0]  # gloo's guess is cut off; ours follows
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        return f"a rank is more than {channel.timeout.total_seconds():g} s late: it hangs or has died ({reason})"
    return f"a rank has died or has left ({reason})"


def _check_places(world: World, call: Call, frames: list[Frame]) -> None:
    """Check that all ranks make the call in the same line; only the root may make it elsewhere.

    Without this check, a rank that skips one of several equal calls would silently get the values of another call.

    Raises:
        DesyncError: the lines differ.
    """
    if call.op in _ANY_PLACE:
        return
    places = {rank: frame.place for rank, frame in enumerate(frames) if rank != call.root}
    if len(set(places.values())) > 1:
        raise _difference(
            world,
            frames,
            places,
            "made the same call in different places, so one of them may have skipped a call",
            "If these calls belong together, choose the value first and make the call on one line for all ranks",
        )


def _raise_difference(world: World, frames: list[Frame]) -> NoReturn:
    failed = [rank for rank, frame in enumerate(frames) if frame.valid and frame.failed]
    if failed:
        lines = [
            f"rank {world.global_ranks[rank]} failed in {frames[rank].text}: {_message(frames[rank])}"
            for rank in failed
        ]
        raise DesyncError("\n".join(lines), ranks=tuple(sorted(world.global_ranks[rank] for rank in failed)))
    if not all(frame.valid for frame in frames) and world.channel is not None:
        world.channel.broken = "a rank answered with a message that is not from rankwise"
    raise _difference(
        world,
        frames,
        {rank: frame.identity for rank, frame in enumerate(frames)},
        "made different calls",
        "Every rank must make the same calls in the same order, with trees of equal structure, shapes and dtypes",
    )


def _message(frame: Frame) -> str:
    whole = bytes(frame.payload).decode(errors="replace")
    return whole + ("" if frame.is_whole else "...")


def _difference(world: World, frames: list[Frame], values: dict[int, bytes], what: str, mend: str) -> DesyncError:
    """Return an error that names the ranks that differ from the majority; with two ranks there is no majority."""
    counts = Counter(values.values())
    common, votes = counts.most_common(1)[0]
    clear = 2 * votes > len(values)
    groups = [[rank for rank in values if values[rank] == value] for value in counts]
    odd = [rank for rank in values if clear and values[rank] != common]
    lines = [f"  {_ranks(world, ranks)}: {_describe(frames[ranks[0]])}" for ranks in groups]
    return DesyncError(
        "\n".join([f"the ranks {what}{f'; unlike the others: {_ranks(world, odd)}' if clear else ''}", *lines, mend]),
        ranks=tuple(sorted(world.global_ranks[rank] for rank in odd)),
        differ=True,
    )


def _describe(frame: Frame) -> str:
    if not frame.valid:
        return "a call that is not from rankwise: a collective of DDP, torch.distributed or another library"
    return f"{frame.text} (call {frame.number})"


def _ranks(world: World, ranks: list[int]) -> str:
    names = [str(world.global_ranks[rank]) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"
