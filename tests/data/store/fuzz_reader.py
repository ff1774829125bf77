"""Run as a script: boxes out of damaged stores. An own error or zarr-python's values; no crash, hang or blow-up.

What is damaged: bytes of chunks, indexes of shards (their checksums made right again), metadata. A hang ends the
process after a minute with the stacks of all threads; memory beyond a fixed amount cannot be had.

Arguments: folder, seed, number of cases.
"""

import copy
import faulthandler
import itertools
import json
import math
import os
import random
import resource
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

import google_crc32c
import numpy as np
import zarr

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.errors import RankwiseError
from rankwise.testing.stores.any_arrays import UnwritableError, write_any
from rankwise.testing.stores.plain_boxes import open_plainly

HANG_S = 60
ROOM_BYTES = 1536 * 2**20
METADATA = ("zarr.json", ".zarray")
TOP = 2**64
ODD = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**20, 2**31, 2**40, 2**63, 2**70, 0.5, 1e308, "", "little", "big", "/",
    ".", "bytes", "zstd", "gzip", "crc32c", "blosc", "start", "end", "C", "F", "<f4", ">f4", "|u1", "uint8", "float64",
    "bool", "NaN", [], {}, [0], [1], [4, 4], [1, 1, 1],
]  # fmt: skip


def seeds(folder, rng, num):
    """Arrays of all kinds."""
    made = 0
    while made < num:
        root = folder / str(made)
        try:
            write_any(rng, root, ndim=rng.randint(1, 3))
            zarr.open_array(root, mode="r")[...]
        except (UnwritableError, ValueError):
            shutil.rmtree(root, ignore_errors=True)
            continue
        made += 1
        yield root


def files_of(root):
    found = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in found if path.name in METADATA], [path for path in found if path.suffix != ".json"]


def changed_bytes(data, rng, low, high):
    """Bytes with something wrong between two places."""
    data = bytearray(data)
    at = rng.randint(low, max(low, high - 1))
    far = rng.randint(at, max(at, high))
    how = rng.randrange(8)
    if how == 0 and data:
        data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
    elif how == 1 and data:
        data[min(low + rng.randrange(20), len(data) - 1)] = rng.randrange(256)  # where frames say their sizes
    elif how == 2:
        del data[at:]
    elif how == 3:
        data[at:at] = rng.randbytes(rng.randint(1, 30))
    elif how == 4:
        data[at:far] = rng.randbytes(far - at)
    elif how == 5:
        data[at:far] = bytes(far - at)
    elif how == 6:
        data[at:far] = data[low : low + rng.randint(0, 40)]
    else:
        del data[at:far]
    return bytes(data)


def changed_index(data, layout, rng):
    """A shard whose index says something else."""
    num, length = math.prod(layout.chunks_per_shard), layout.num_bytes
    begin = len(data) - length if layout.at_end else 0
    table = np.frombuffer(data, "<u8", 2 * num, begin).reshape(num, 2).astype(object)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        row, column = rng.randrange(num), rng.randrange(2)
        old = table[row, column]
        table[row, column] = rng.choice(
            (0, 1, old + 1, old - 1, old + rng.randrange(200), len(data), len(data) + 1, len(data) - 1, TOP - 1,
             TOP - 2, TOP - rng.randrange(1, 300), 2**63, 2**63 - 1, 2**32, table[rng.randrange(num), column])
        ) % TOP  # fmt: skip
        if rng.random() < 0.1:
            table[row] = (TOP - 1, TOP - 1)
    index = table.astype("<u8").tobytes()
    if layout.checked:
        index += (google_crc32c.value(index) if rng.random() < 0.9 else rng.randrange(2**32)).to_bytes(4, "little")
    return data[:begin] + index + data[begin + length :]


def spots(value, path=()):
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from spots(value[key], (*path, key))


def changed_metadata(text, rng):
    if rng.random() < 0.2:
        return changed_bytes(text, rng, 0, len(text))
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        *path, last = rng.choice(list(spots(document)))
        holder = document
        for key in path:
            holder = holder[key]
        old = holder[last]
        alike = [odd for odd in ODD if type(odd) is type(old)]
        if type(old) is int and rng.random() < 0.6:
            alike = [old + 1, old - 1, 2 * old, 3 * old, old // 2]
        holder[last] = copy.deepcopy(rng.choice(alike if alike and rng.random() < 0.8 else ODD))
    return json.dumps(document).encode()


def damage(root, meta, rng):
    """Damage one file; return what kind of damage it is and how to undo it."""
    documents, chunks = files_of(root)
    kind = rng.choice(("chunk", "chunk", "index", "metadata"))
    if not chunks:
        kind = "metadata"
    elif kind == "index" and meta.index is None:
        kind = "chunk"
    path = rng.choice(documents if kind == "metadata" else chunks)
    data = path.read_bytes()
    if kind == "metadata":
        changed = changed_metadata(data, rng)
    elif kind == "index":
        changed = changed_index(data, meta.index, rng)
    else:
        at_end = meta.index is not None and meta.index.at_end and rng.random() < 0.8
        changed = changed_bytes(data, rng, 0, len(data) - meta.index.num_bytes if at_end else len(data))
        if at_end and rng.random() < 0.8:  # the damage keeps to the chunks
            tail = data[len(data) - meta.index.num_bytes :]
            changed = changed[: len(data) - len(tail)].ljust(len(data) - len(tail), b"\0") + tail
    path.write_bytes(changed)
    return kind, lambda: path.write_bytes(data)


def request_of(meta, rng):
    """Boxes here and there, the corners among them."""
    shape = tuple(rng.randint(1, max(1, min(size, 12))) for size in meta.shape)
    rooms = [max(0, size - extent) for size, extent in zip(meta.shape, shape, strict=True)]
    starts = [[0] * len(rooms), rooms, *([rng.randint(0, room) for room in rooms] for _ in range(4))]
    starts = np.array(starts, np.int64)
    return BoxRequest(
        arrays=(meta,), which=np.zeros(len(starts), np.int64), starts=starts, shape=shape, dtype=meta.dtype, pad="fill"
    )


def theirs(request):
    """What zarr-python says of each box, at once or chunk by chunk; None where it fails both ways."""
    meta = request.arrays[0]
    try:
        array = open_plainly(meta, checked=True)
    except Exception:  # noqa: BLE001
        return [None] * len(request)
    values = [plainly(array, start, request) for start in request.starts.tolist()]
    return [
        by_chunk(array, start, request) if found is None else found
        for found, start in zip(values, request.starts.tolist(), strict=True)
    ]


def plainly(array, start, request):
    region = tuple(
        slice(low, min(low + extent, size)) for low, extent, size in zip(start, request.shape, array.shape, strict=True)
    )
    try:
        return np.asarray(array[region]).astype(request.dtype, copy=False)
    except Exception:  # noqa: BLE001
        return None


def by_chunk(array, start, request):
    """What was asked of a damaged shard decides what zarr-python finds wrong with it."""
    meta = request.arrays[0]
    stop = [min(low + extent, size) for low, extent, size in zip(start, request.shape, meta.shape, strict=True)]
    values = np.zeros([high - low for low, high in zip(start, stop, strict=True)], request.dtype)
    grids = [range(low // n, -(-high // n)) for low, high, n in zip(start, stop, meta.chunks, strict=True)]
    for coords in itertools.product(*grids):
        low = [at * n for at, n in zip(coords, meta.chunks, strict=True)]
        high = [min(first + n, size) for first, n, size in zip(low, meta.chunks, meta.shape, strict=True)]
        try:
            chunk = np.asarray(array[tuple(map(slice, low, high))])
        except Exception:  # noqa: BLE001
            return None
        first, last = np.maximum(low, start), np.minimum(high, stop)
        inside = tuple(map(slice, (first - low).tolist(), (last - low).tolist()))
        values[tuple(map(slice, (first - start).tolist(), (last - start).tolist()))] = chunk[inside]
    return values


def read(request, decoder, rng):
    os.environ["RANKWISE_DECODER"] = decoder
    out = np.zeros((len(request), *request.shape), request.dtype)
    with BoxReader(threads=1, cache=rng.choice((0, 10**6))) as reader:
        (report,) = reader.read([(reader.plan(request), out)])
    for error in report.errors:
        assert isinstance(error.error, RankwiseError)
        assert str(request.arrays[0].place) in str(error.error), str(error.error)
    assert report.valid.sum() + len(report.errors) == len(request)
    return out, report.valid


def one(root, rng, counts):
    """One case."""
    meta = read_meta(str(root))
    whole = zarr.open_array(root, mode="r")[...]
    kind, undo = damage(root, meta, rng)
    counts[kind] += 1
    try:
        try:
            meta = read_meta(str(root))
            request = request_of(meta, rng)
        except RankwiseError:
            counts["refused"] += 1
            return
        wanted = theirs(request)
        for decoder in ("kernel", "threads"):
            out, valid = read(request, decoder, rng)
            for box in range(len(request)):
                told = judge(request, box, out[box], valid=valid[box], wanted=wanted[box], kind=kind, whole=whole)
                counts[told] += 1
    except BaseException:
        shutil.copytree(root, f"{root}-damaged", dirs_exist_ok=True)
        raise
    finally:
        undo()


def judge(request, box, got, *, valid, wanted, kind, whole):
    """Name what came of one box; what must not be is an error."""
    if not valid:
        return "told" if wanted is None else "told where zarr-python is content"
    if wanted is None and kind == "metadata":
        return "only we read"
    if wanted is None:  # nothing of what was asked for may be damaged
        start = request.starts[box].tolist()
        wanted = whole[tuple(slice(low, low + extent) for low, extent in zip(start, request.shape, strict=True))]
        assert np.array_equal(got.view("u1"), wanted.astype(request.dtype).view("u1")), "damage went unnoticed"
        return "sound part"
    inside = got[tuple(slice(0, extent) for extent in wanted.shape)]
    assert np.array_equal(np.ascontiguousarray(inside).view("u1"), np.ascontiguousarray(wanted).view("u1")), (
        f"{kind}: {request.starts[box]} {request.shape} ours {got!r}, zarr-python's {wanted!r}"
    )
    return "equal"


def main(folder, seed, num):
    faulthandler.enable()
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    roots = list(seeds(Path(folder), rng, max(20, num // 40)))
    counts = Counter()
    one(roots[0], rng, Counter())  # compilers and libraries have their memory by now
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
    for case in range(num):
        root = rng.choice(roots)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            one(root, rng, counts)
        except BaseException:
            print(f"case {case} of seed {seed}: {root}", file=sys.stderr)
            raise
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"cases": num, **counts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
