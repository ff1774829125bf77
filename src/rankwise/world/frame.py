"""The frame: the fixed-size message with which every collective begins.

It identifies the call by bytes that can be compared, says whether the rank has an error, and holds a readable text and
up to `INLINE` bytes of payload, so that a small call needs one exchange only.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

__all__ = ["FRAME_BYTES", "INLINE", "Call", "Frame", "decode_frame", "encode_frame"]

_MAGIC = b"RKW2"
_IDENTITY = struct.Struct(
    "<4sQ20s4si16s"
)  # magic, number of the call, op, reduce op, root, hash of the tree's structure
_REST = struct.Struct("<B8sHQ")  # error flag, hash of the caller's place, sizes of the text and of the whole payload
_TEXT = 431
INLINE = 1024
FRAME_BYTES = _IDENTITY.size + _REST.size + _TEXT + INLINE


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
        root = {"broadcast": "src", "broadcast_object": "src", "from_main": "src"}.get(self.op, "dst")
        arguments = [self.reduce] * bool(self.reduce) + [f"{root}={self.root}"] * (self.root >= 0)
        return f"{self.op}({', '.join(arguments)}) at {self.place}"


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
        payload: the inline part of the payload, up to `INLINE` bytes.
        payload_bytes: size of the whole payload; it is complete if this is at most `INLINE`.
    """

    identity: bytes
    valid: bool
    number: int
    failed: bool
    place: bytes
    text: str
    payload: memoryview
    payload_bytes: int


def encode_frame(
    call: Call,
    number: int,
    *,
    payload: bytes | memoryview,
    payload_bytes: int,
    structure: str = "",
    failed: bool = False,
) -> bytes:
    """Return the frame, `FRAME_BYTES` long; a longer payload is cut to its beginning."""
    text = (f"{call.title} of {structure}" if structure else call.title).encode()[:_TEXT]
    digest = hashlib.blake2b(structure.encode(), digest_size=16).digest()
    head = _IDENTITY.pack(_MAGIC, number, call.op.encode(), call.reduce.encode(), call.root, digest)
    body = bytes(payload[:INLINE])
    where = call.place.rpartition("/")[2]  # without the folder, as each machine may run its own copy
    place = hashlib.blake2b(where.encode(), digest_size=8).digest()
    return (
        head
        + _REST.pack(failed, place, len(text), payload_bytes)
        + text.ljust(_TEXT, b"\0")
        + body.ljust(INLINE, b"\0")
    )


def decode_frame(raw: memoryview) -> Frame:
    """Parse a frame of `FRAME_BYTES` bytes."""
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
        payload=raw[start : start + min(payload_bytes, INLINE)],
        payload_bytes=payload_bytes,
    )
