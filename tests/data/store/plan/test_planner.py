"""Plans that are made after others: the same as if they had been made alone."""

from dataclasses import fields

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, Runs, read_meta

SIZE = 500


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of arrays, some with chunks that were never written; in the last the grids differ."""
    folder, made = tmp_path_factory.mktemp("arrays"), []
    for number, (chunks, shards, gap) in enumerate(
        [((30, 30), True, None), ((30, 30), True, 100), ((7, 7), False, 200), ((30, 20), True, None)]
    ):
        metas = []
        for which, dtype in enumerate(("f4", "u2")):
            uri = str(folder / f"{number}{which}.zarr")
            array = zarr.create_array(
                uri, shape=(SIZE,), dtype=dtype, chunks=(chunks[which],),
                shards=(4 * chunks[which],) if shards else None, fill_value=1,
            )  # fmt: skip
            array[: SIZE if gap is None else gap + 40 * which] = np.arange(SIZE if gap is None else gap + 40 * which)
            metas.append(read_meta(uri))
        made.append(metas)
    return made


def request(meta, starts, which, runs, dtype):
    return BoxRequest(arrays=(meta,), which=which, starts=starts, shape=(1,), dtype=np.dtype(dtype), runs=runs)


@pytest.mark.parametrize("pair", range(4))
def test_a_plan_after_another_is_the_plan_alone(pairs, pair):
    """Chunks, files, bytes and targets: whether grids agree or not, whether chunks are missing here or there."""
    rng = np.random.default_rng(pair)
    elements, columns = pairs[pair]
    with BoxReader(cache=0) as reader:
        for count in (0, 1, 40):
            starts = rng.integers(0, SIZE - 60, (count, 1))
            runs, which = Runs.packed(rng.integers(0, 60, count)), np.zeros(count, dtype=np.int64)
            first = reader.plan(request(elements, starts, which, runs, "f4"))
            wanted = request(columns, starts, which, runs, "i4")
            after, alone = reader.plan(wanted, like=first), reader.plan(wanted)
            assert (after.targets is first.targets) == (pair != 3)
            for table in ("chunks", "targets"):
                for column in fields(getattr(alone, table)):
                    one, other = (getattr(getattr(plan, table), column.name) for plan in (after, alone))
                    np.testing.assert_array_equal(one, other)
            assert [facts.path for facts in after.files] == [facts.path for facts in alone.files]
            assert (after.read_bytes, after.decode_bytes) == (alone.read_bytes, alone.decode_bytes)
            assert after.failed == alone.failed == {}
