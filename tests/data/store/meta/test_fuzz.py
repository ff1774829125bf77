"""Damaged and odd metadata: an own error, or the same facts as zarr-python; never another exception or a difference."""

import json
import random
import warnings

import numpy as np
import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.errors import DataError

# What zarr-python opens and we refuse on purpose.
REFUSED = (
    "no axis",
    "cannot be empty",
    "exceed any memory",
    "storage_transformers",
    "dimension_names",
    "variable-length",
    "attributes",
    "node_type",
    "expected an object",
)
FAST = {"zstd": "zstd", "blosc": "blosc", "numcodecs.zstd": "zstd", "numcodecs.blosc": "blosc", "numcodecs.lz4": "lz4"}


def seeds(folder):
    """Documents that zarr-python writes, of both versions."""
    blosc = zarr.codecs.BloscCodec(cname="lz4", typesize=2)
    for number, options in enumerate(
        [
            {},
            {"shards": (8, 8), "compressors": blosc, "dimension_names": ["y", "x"]},
            {"compressors": None, "chunk_key_encoding": {"name": "v2", "separator": "."}},
            {"zarr_format": 2, "compressors": None},
            {"zarr_format": 2, "dtype": ">f8", "fill_value": float("nan")},
        ]
    ):
        path = folder / f"seed{number}"
        zarr.create_array(path, **{"shape": (16, 12), "chunks": (4, 4), "dtype": "uint16", **options})
        yield ".zarray" if options.get("zarr_format") == 2 else "zarr.json", path


def damaged(text, rng):
    """Bytes of a document that were cut, flipped, or partly written twice."""
    text = bytearray(text)
    place = rng.randrange(len(text))
    action = rng.randrange(4)
    if action == 0:
        return bytes(text[:place])
    if action == 1:
        text[place] ^= 1 << rng.randrange(8)
    elif action == 2:
        text[place:place] = rng.choice([b"0", b"9", b'"', b",", b"[", b"{", b"-", b"e", b"\xff", b"\0", b"NaN"])
    else:
        text[place:place] = text[rng.randrange(len(text)) :]
    return bytes(text)


def check(path, name):
    """Compare what we and zarr-python say about the array at a path."""
    zarr_format = 2 if name == ".zarray" else 3
    try:
        theirs = zarr.open_array(path, mode="r", zarr_format=zarr_format)
    except Exception:  # noqa: BLE001  (whatever it raises)
        theirs = None
    try:
        ours = read_meta(path)
    except DataError as error:
        refused = str(error)
        assert theirs is None or any(word in refused for word in REFUSED), f"zarr-python opens it: {refused}"
        return "refused"
    assert theirs is not None, "opened what zarr-python refuses"
    compare(ours, theirs, zarr_format)
    return ours.codec.kind


def compare(ours, theirs, zarr_format):
    assert (ours.shape, ours.dtype) == (theirs.shape, np.dtype(theirs.dtype).newbyteorder("="))
    if 0 not in theirs.shape:
        assert (ours.chunks, ours.files) == (theirs.chunks, theirs.shards or theirs.chunks)
    coords = (3, 2, 1, 0)[: ours.ndim]
    assert ours.keys.key(coords) == theirs.metadata.encode_chunk_key(coords)
    fill = np.zeros((), ours.dtype)[()] if theirs.fill_value is None else theirs.fill_value
    assert np.asarray(ours.fill_value).tobytes() == np.asarray(fill).astype(ours.dtype).tobytes()
    if ours.codec.kind != "zarr":
        assert ours.codec.kind == kind_of(theirs, zarr_format)


def kind_of(array, zarr_format):
    """The kind of a chain, from zarr-python's own objects; None if none of ours."""
    if zarr_format == 2:
        plain = not array.metadata.filters and (array.metadata.order == "C" or array.ndim == 1)
        if not plain or np.dtype(array.dtype).byteorder == ">":
            return None
        compressor = array.metadata.compressor
        return "raw" if compressor is None else {"zstd": "zstd", "blosc": "blosc", "lz4": "lz4"}[compressor.codec_id]
    first, *rest = (codec.to_dict() for codec in array.metadata.inner_codecs)
    big = first.get("configuration", {}).get("endian") == "big"
    if first["name"] != "bytes" or big or len(rest) > 1:
        return None
    return FAST[rest[0]["name"]] if rest else "raw"


def run(tmp_path, mutate, num_cases, seed):
    """Check many cases; return how often each outcome came."""
    rng = random.Random(seed)
    documents = [(name, path, (path / name).read_bytes()) for name, path in seeds(tmp_path)]
    outcomes = {}
    for _ in range(num_cases):
        name, path, text = rng.choice(documents)
        odd = rng.random() < 0.7
        changed = json.dumps(mutate(json.loads(text), rng)).encode() if odd else damaged(text, rng)
        (path / name).write_bytes(changed)
        try:
            outcome = check(path, name)
        except Exception as error:
            raise AssertionError(f"{name}: {changed!r}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


@pytest.mark.parametrize("seed", range(3))
def test_odd_metadata(tmp_path, mutate, seed):
    """Hundreds of changed documents: an own error, or what zarr-python says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr-python, about odd documents
        outcomes = run(tmp_path, mutate, 150, seed)
    fast = sum(outcomes.values()) - outcomes["refused"] - outcomes["zarr"]
    assert min(outcomes["refused"], outcomes["zarr"], fast) > 5  # the cases reach every outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_odd_metadata_at_length(tmp_path, mutate, seed):
    """Tens of thousands of changed documents: an own error, or what zarr-python says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = run(tmp_path, mutate, 10_000, seed)
    assert sum(outcomes.values()) == 10_000
