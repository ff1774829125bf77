"""The cast on the way into the output: bit for bit what NumPy's `converted` gives, for every pair of dtypes."""

import ml_dtypes
import numpy as np
import pytest

from rankwise.data.store.decode.kernel import is_castable
from rankwise.data.store.decode.tasks import OK, OUT_OF_RANGE
from rankwise.errors import DataError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(name) for name in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")]
FLOATS = [np.dtype(name) for name in ("f2", "f4", "f8")]
STORED = [np.dtype("?"), *INTEGERS, *FLOATS]
PAIRS = [(stored, wanted) for stored in STORED for wanted in (*STORED, BFLOAT16)]
# Of every kind of conversion one; the others differ in sizes and take minutes to compile.
COMMON = [
    *[("u2", name) for name in ("?", "u1", "u2", "i2", "i8", "f2", "bfloat16", "f4", "f8")],
    *[("f2", name) for name in ("?", "u1", "i4", "bfloat16", "f4", "f8")],
    *[("f4", name) for name in ("u1", "i8", "f2", "bfloat16", "f8")],
    *[("f8", name) for name in ("u8", "i4", "f2", "bfloat16", "f4")],
    *[("i8", name) for name in ("u8", "i1", "f2", "bfloat16", "f4")],
    *[("u8", "f4"), ("u8", "i8"), ("i1", "u8"), ("i1", "f4"), ("?", "f2"), ("?", "f4"), ("?", "i2"), ("?", "bfloat16")],
]
SCALED = [
    ("u2", "f4"),
    ("u2", "bfloat16"),
    ("u2", "f2"),
    ("f2", "f8"),
    ("f8", "f4"),
    ("f4", "f8"),
    ("?", "f4"),
    ("u8", "f4"),
]
CHECKED = [
    ("u2", "u1"),
    ("i1", "u8"),
    ("u8", "i8"),
    ("i8", "u4"),
    ("f4", "i4"),
    ("f4", "u8"),
    ("f8", "i8"),
    ("f2", "u1"),
]


def cases(pairs, common):
    """Pairs as parameters: those that are not common are slow."""
    quick = {(np.dtype(stored), BFLOAT16 if wanted == "bfloat16" else np.dtype(wanted)) for stored, wanted in common}
    assert quick <= set(pairs)
    return [
        pytest.param(
            *pair, id="-".join(dtype.name for dtype in pair), marks=[] if pair in quick else [pytest.mark.slow]
        )
        for pair in pairs
    ]


def corners(dtype, seed=0):
    """Values at which conversions differ: limits, halves, subnormals, infinities, many NaNs, random bits."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, 256).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        edges = {0, 1, -1, limits.min, limits.max, limits.max - 1, limits.min + 1}
        for bits in range(1, 64):
            edges |= {2**bits, 2**bits - 1, 2**bits + 1, -(2**bits), 3 * 2**bits + 1}
        kept = [edge for edge in sorted(edges) if limits.min <= edge <= limits.max]
        random = rng.integers(limits.min, limits.max, 500, dtype=dtype, endpoint=True)
        return np.concatenate([np.array(kept, dtype=dtype), random])
    if dtype == np.float16:
        return np.arange(2**16, dtype=np.uint16).view(dtype)
    words = {4: np.uint32, 8: np.uint64}[dtype.itemsize]
    random = rng.integers(0, np.iinfo(words).max, 1000, dtype=words, endpoint=True).view(dtype)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)[::29].astype(dtype)
    with np.errstate(all="ignore"):
        near = np.concatenate([halves, np.nextafter(halves, dtype.type(np.inf)), np.nextafter(halves, dtype.type(0))])
        between = (halves[:-7] + halves[7:]) / 2
        ties = np.float32(1) + np.arange(64, dtype=dtype) * dtype.type(2**-9)
        few = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 65504, 65519.99, 65520, 1e-8, 6e-8, 5e-324, 1e39]
        )
        return np.concatenate([random, near, between, ties, few.astype(dtype), *nans(dtype, words)])


def nans(dtype, words):
    """NaNs with payloads and signs."""
    top = {4: 0x7F800000, 8: 0x7FF0000000000000}[dtype.itemsize]
    sign = {4: 2**31, 8: 2**63}[dtype.itemsize]
    mantissa = {4: 23, 8: 52}[dtype.itemsize]
    payloads = [1 << bit for bit in range(mantissa)] + [(1 << mantissa) - 1]
    bits = np.array([top | payload for payload in payloads], dtype=words)
    return bits.view(dtype), (bits | words(sign)).view(dtype)


def fitting(values, wanted):
    """Those values that fit an integer dtype."""
    if wanted.kind not in "iu" or values.dtype.kind == "b":
        return values
    limits = np.iinfo(wanted)
    kept = [limits.min - 1 < value < limits.max + 1 for value in values.tolist()]
    return values[np.array(kept)]


def same_bits(left, right):
    return left.dtype == right.dtype and left.tobytes() == right.tobytes()


@pytest.mark.parametrize(("stored", "wanted"), cases(PAIRS, COMMON))
def test_casts_have_the_bits_of_numpy(stored, wanted, decoder, make_simple):
    """Every value of every pair of dtypes comes out with the very bits that `converted` gives."""
    assert is_castable(stored, wanted, scaled=False)
    values = fitting(corners(stored), wanted)
    work = make_simple(values, wanted=wanted)
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OK]
    assert same_bits(out, work.expected())


@pytest.mark.parametrize(
    ("stored", "wanted"), cases([pair for pair in PAIRS if pair[1] in (*FLOATS, BFLOAT16)], SCALED)
)
def test_scaled_casts_have_the_bits_of_numpy(stored, wanted, decoder, make_simple):
    """Scaling is computed in float32, or in float64 where that comes out, and rounded as NumPy rounds."""
    assert is_castable(stored, wanted, scaled=True)
    work = make_simple(corners(stored), wanted=wanted, scaling=(1 / 257, -0.3))
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OK]
    assert same_bits(out, work.expected())


@pytest.mark.parametrize(
    ("stored", "wanted"), cases([pair for pair in PAIRS if pair[0].kind != "b" and pair[1] in INTEGERS], CHECKED)
)
def test_values_that_do_not_fit_are_refused(stored, wanted, decoder, make_simple):
    """One value out of range, at whatever place, is a status and never a wrapped number."""
    good = fitting(corners(stored)[:50], wanted)[:20]
    bad = [value for value in corners(stored, seed=1) if len(fitting(np.array([value], dtype=stored), wanted)) == 0]
    for value in bad[:: max(1, len(bad) // 8)]:
        work = make_simple(np.concatenate([good, np.array([value], dtype=stored), good]), wanted=wanted)
        tasks, _ = work.run(decoder)
        assert tasks.status.tolist() == [OUT_OF_RANGE]
        assert tasks.unfit.tolist() == [True]
        with pytest.raises(DataError):
            work.expected()


@pytest.mark.parametrize("name", ["c8", "c16", "V3", "V16", "M8[s]", "S5", "u4"])
def test_elements_of_any_size_come_out_as_they_are(name, decoder, make_simple):
    """Without a cast, elements are bytes: of any dtype of fixed size."""
    dtype = np.dtype(name)
    rng = np.random.default_rng(3)
    values = np.frombuffer(rng.bytes(5 * 7 * dtype.itemsize), dtype=dtype).reshape(5, 7)
    tasks, out = make_simple(values, "zstd").run(decoder)
    assert tasks.status.tolist() == [OK]
    assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize(("stored", "wanted"), [("c8", "c16"), ("f4", "c8"), ("u2", "c16"), ("f4", ">f4")])
def test_pairs_without_a_compiled_loop_come_out_all_the_same(stored, wanted, kernel, make_simple):
    """What the compiled decoder has no loop for goes through NumPy, with the same result."""
    assert not is_castable(np.dtype(stored), np.dtype(wanted), scaled=False)
    work = make_simple(np.arange(24).reshape(2, 12).astype(stored), "zstd", wanted=wanted)
    tasks, out = work.run(kernel)
    assert tasks.status.tolist() == [OK]
    assert np.array_equal(out, work.expected())


def test_only_the_spoiled_target_is_marked(decoder, make_work):
    """Of two targets of one chunk, the one whose values all fit is not spoiled by the other."""
    values = np.arange(300, dtype=np.uint16)
    targets = [(0, (0,), (100,), (0,)), (0, (200,), (100,), (0,)), (0, (100,), (100,), (0,))]
    work = make_work(
        values=[values], frames=[values.tobytes()], kinds=["raw"], targets=targets, shape=(100,),
        wanted=np.dtype("u1"), ways=["memory"],
    )  # fmt: skip
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OUT_OF_RANGE]
    assert tasks.unfit.tolist() == [False, True, False]
    assert np.array_equal(out[[0, 2]].ravel(), np.arange(200))
