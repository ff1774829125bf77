"""Frames."""

from hypothesis import given
from hypothesis import strategies as st

from rankwise.world.collectives.handshake import FRAME_BYTES, INLINE, Call, decode_frame, encode_frame


@given(st.binary(max_size=3000), st.text(max_size=700), st.booleans(), st.integers(0, 2**63))
def test_a_frame_has_one_size_and_keeps_what_fits(payload, structure, failed, number):
    """Whatever goes in, the frame is as long as every other, and gives back number, flag, text and payload."""
    call = Call("all_gather_object", "train.py:7")
    raw = encode_frame(call, number, structure=structure, payload=payload, payload_bytes=len(payload), failed=failed)
    assert len(raw) == FRAME_BYTES
    frame = decode_frame(memoryview(raw))
    assert (frame.valid, frame.number, frame.failed, frame.payload_bytes) == (True, number, failed, len(payload))
    assert bytes(frame.payload) == payload[:INLINE]
    assert frame.text.startswith("all_gather_object() at train.py:7")


def identity(call, number=1, structure=""):
    raw = encode_frame(call, number, structure=structure, payload=b"", payload_bytes=0, failed=False)
    return decode_frame(memoryview(raw)).identity


def test_the_identity_holds_what_must_agree_and_nothing_else():
    """Op, reduce op, root, structure and number tell calls apart; the line that calls does not."""
    base = Call("all_reduce", "a.py:1", "sum")
    others = [
        Call("all_reduce", "a.py:1", "mean"),
        Call("reduce", "a.py:1", "sum"),
        Call("all_reduce", "a.py:1", "sum", 1),
    ]
    others += [Call("gather_object", "a.py:1"), Call("all_gather_object", "a.py:1")]
    known = [identity(call) for call in [base, *others]] + [identity(base, 2), identity(base, structure="int")]
    assert len(set(known)) == len(known)
    assert identity(Call("all_reduce", "b.py:9", "sum")) == identity(base)


def test_foreign_bytes_are_recognised():
    """What another library sent is no frame."""
    assert not decode_frame(memoryview(bytes(FRAME_BYTES))).valid
