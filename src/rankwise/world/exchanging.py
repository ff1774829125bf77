"""Every collective begins here: all ranks swap frames, and go on only if they make the same call without an error."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from rankwise.errors import DesyncError, WorldError
from rankwise.world.channel import Channel
from rankwise.world.frame import FRAME_BYTES, Call, Frame, decode_frame, encode_frame
from rankwise.world.key_channel import KeyChannel

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["Offer", "call_place", "carry", "exchange"]

_HERE = str(PurePath(__file__).parent)


class Offer(Protocol):
    """What a rank brings to a call."""

    @property
    def structure(self) -> str:
        """Structure of its tree; must be equal on all ranks."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Size of its payload."""
        ...

    def payload(self) -> bytes | memoryview:
        """Return the payload, or at least the beginning of it that must travel in the frame."""
        ...


@dataclass(frozen=True, slots=True)
class _Failure:
    """The offer of a rank that comes with an error."""

    error: Exception
    structure: str = ""

    @property
    def payload_bytes(self) -> int:
        return len(self.payload())

    def payload(self) -> bytes:
        return f"{type(self.error).__name__}: {self.error}".encode()


def call_place() -> str:
    """Return file and line of the code that called into this room."""
    frame = sys._getframe(1)  # noqa: SLF001  (a traceback object would cost 100 times as much, at every call)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.cache
def _short(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


OfferT = TypeVar("OfferT", bound=Offer)


def exchange(world: World, call: Call, offer: Callable[[], OfferT]) -> tuple[OfferT, list[Frame]]:
    """Swap frames with all ranks of the world; return this rank's offer and the frames by rank.

    Args:
        world: a world with a group.
        call: this call.
        offer: prepares what this rank brings; if it fails every rank raises.

    Raises:
        Exception: whatever `offer` raised on this rank.
        DesyncError: another rank failed, or the ranks make different calls. The group stays usable.
        WorldError: the group is lost: a rank died or is late by more than the timeout.
    """
    assert world.channel is not None
    if world.channel.broken:
        raise WorldError(f"{call.title}: the group cannot be used any more: {world.channel.broken}")
    ready: OfferT | _Failure
    try:
        ready = offer()
    except Exception as error:  # noqa: BLE001  (told to all ranks, then raised)
        ready = _Failure(error)
    world.channel.calls += 1
    frames = _swap(world, call, ready)
    if isinstance(ready, _Failure):
        raise ready.error
    identity = frames[world.rank].identity
    if any(frame.failed or frame.identity != identity for frame in frames):
        _complain(world, frames)
    return ready, frames


def _swap(world: World, call: Call, ready: Offer) -> list[Frame]:
    channel = world.channel
    assert channel is not None
    raw = encode_frame(
        call,
        channel.calls,
        structure=ready.structure,
        payload=ready.payload(),
        payload_bytes=ready.payload_bytes,
        failed=isinstance(ready, _Failure),
    )
    if isinstance(channel, KeyChannel):
        found: list[bytes] = []
        carry(world, call, lambda: found.extend(channel.swap(raw)))
        return [decode_frame(memoryview(frame)) for frame in found]
    return _swap_tensors(world, call, channel, raw)


def _swap_tensors(world: World, call: Call, channel: Channel, raw: bytes) -> list[Frame]:
    import torch
    import torch.distributed as dist

    mine = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(channel.device)
    all_frames = torch.empty(world.world_size, FRAME_BYTES, dtype=torch.uint8, device=channel.device)
    carry(world, call, lambda: dist.all_gather(list(all_frames.unbind()), mine, group=channel.group))
    whole = memoryview(all_frames.cpu().numpy().tobytes())
    return [decode_frame(whole[start : start + FRAME_BYTES]) for start in range(0, len(whole), FRAME_BYTES)]


def carry(world: World, call: Call, transport: Callable[[], Any]) -> None:
    """Run a collective of torch's or JAX's; if it fails, note that the group is lost.

    Raises:
        WorldError: it failed; names the rank, the call and the reason.
    """
    channel = world.channel
    assert channel is not None
    try:
        transport()
    except RuntimeError as error:
        rank = world.global_ranks[world.rank]
        channel.broken = f"{call.title} failed on rank {rank}: {error}"
        raise WorldError(
            f"rank {rank} lost the other ranks in {call.title} (call {channel.calls} of this group): "
            f"{_loss(error, channel)}; its own output says why. The group cannot be used any more"
        ) from error


def _loss(error: RuntimeError, channel: Channel | KeyChannel) -> str:
    reason = str(error).partition(". This is typically")[0]  # the rest is gloo's guess, ours follows
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        return f"a rank is more than {channel.timeout.total_seconds():g} s late, it hangs or has died ({reason})"
    return f"a rank has died or has left ({reason})"


def _complain(world: World, frames: list[Frame]) -> NoReturn:
    failed = [rank for rank, frame in enumerate(frames) if frame.valid and frame.failed]
    if failed:
        lines = [
            f"rank {world.global_ranks[rank]} failed in {frames[rank].text}: {_message(frames[rank])}"
            for rank in failed
        ]
        raise DesyncError("\n".join(lines), ranks=tuple(sorted(world.global_ranks[rank] for rank in failed)))
    raise _difference(world, frames)


def _message(frame: Frame) -> str:
    whole = bytes(frame.payload).decode(errors="replace")
    return whole + ("..." if frame.payload_bytes > len(frame.payload) else "")


def _difference(world: World, frames: list[Frame]) -> DesyncError:
    """Name the ranks that differ from the majority; without one (two ranks) nobody can say who is wrong."""
    counts = Counter(frame.identity for frame in frames)
    common, votes = counts.most_common(1)[0]
    clear = 2 * votes > len(frames)
    lines = []
    for identity in counts:
        ranks = [rank for rank, frame in enumerate(frames) if frame.identity == identity]
        lines.append(f"  {_ranks(world, ranks)}: {_said(frames[ranks[0]])}")
    odd = [rank for rank, frame in enumerate(frames) if clear and frame.identity != common]
    if not all(frame.valid for frame in frames) and world.channel is not None:
        world.channel.broken = "a rank answered with a message that is not rankwise's"
    return DesyncError(
        f"the ranks make different calls{f', not as the others: {_ranks(world, odd)}' if clear else ''}\n"
        + "\n".join(lines)
        + "\nEvery rank must make the same calls in the same order, with trees of equal structure, shapes and dtypes",
        ranks=tuple(sorted(world.global_ranks[rank] for rank in odd)),
    )


def _said(frame: Frame) -> str:
    if not frame.valid:
        return "something that is no call of rankwise: a collective of DDP, torch.distributed or another library"
    return f"{frame.text} (call {frame.number})"


def _ranks(world: World, ranks: list[int]) -> str:
    names = [str(world.global_ranks[rank]) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names)}"
