"""Kills writings of collections at chosen places; run by test_kills.py: python killed.py FOLDER."""

import os
import shutil
import sys
import warnings
from pathlib import Path

import anndata  # noqa: F401  (imported once for all the forks)

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection import buckets, contents, ranks, writer
from rankwise.data.rows.output import shards
from rankwise.testing.faults import end_at
from rankwise.testing.stores.small_rows import small_anndata

# Where a kill falls: owner, name, which call, and whether before or after it.
PLACES = {
    "half-block": (buckets, "append_record", 5, "before"),
    "no-mark": (ranks.Marks, "put", 2, "before"),
    "no-mark-of-names": (ranks.Marks, "put", 5, "before"),
    "half-skeleton": (contents, "create_sparse", 2, "before"),
    "half-shard": (shards._ShardFile, "add", 2, "before"),
    "half-table": (contents, "quiet_anndata", 5, "before"),
    "second-dataset": (contents, "array_checksums", 2, "before"),
    "half-moved": (writer, "fsync_folder", 1, "before"),
    "before-commit": (writer, "commit", 1, "before"),
    "after-commit": (writer, "commit", 1, "after"),
    "dropped": (writer, "_drop", 1, "after"),
}
CASES = [(name, name == "dropped") for name in PLACES] + [("after-commit", True)]


def inputs():
    return [small_anndata(20, 6, seed=seed) for seed in (1, 2)]


def add(folder, *, reshuffle):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        DatasetCollection(folder).add_adatas(
            inputs(), rng=7, dataset_size=30, n_obs_per_chunk=8, matrices=["X"], reshuffle=reshuffle
        )


def main(base):
    from rankwise.data.rows.collection.options import WriteOptions

    WriteOptions.part_rows = lambda *_: 15  # several blocks and buckets
    if os.fork() == 0:
        DatasetCollection(base / "before.zarr").add_adatas([small_anndata(20, 6, seed=0)], rng=1, matrices=["X"])
        os._exit(0)
    assert os.wait()[1] == 0
    for name, reshuffle in CASES:
        folder = base / f"{name}-{reshuffle}.zarr"
        shutil.copytree(base / "before.zarr", folder)
        if os.fork() == 0:
            end_at(*PLACES[name])
            add(folder, reshuffle=reshuffle)
            os._exit(0)
        status = os.wait()[1]
        assert os.WIFSIGNALED(status), f"{name} was not reached"
    print("killed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
