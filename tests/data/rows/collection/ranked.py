"""Writes collections by several processes, some of which are killed; run by test_ranks.py: python ranked.py FOLDER."""

import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

import anndata  # noqa: F401  (imported once for all the forks)

from rankwise._process.place import Place
from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection import ranks
from rankwise.data.rows.collection.inputs.tables import Table
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.data.rows.output import shards
from rankwise.errors import DataError
from rankwise.testing.faults import end_at
from rankwise.testing.held_ports import hold_port
from rankwise.testing.stores.small_rows import small_anndata, write_anndata
from rankwise.world import store_channel

# Where rank 1 ends: owner, name, which call, and what comes of it.
FAULTS = {
    "first-pass": (ranks.Marks, "put", 2, "before"),
    "second-pass": (shards._ShardFile, "add", 4, "before"),
    "bad-input": (Table, "block", 3, DataError("rows 5 to 6 of X cannot be read: no such luck")),
}


def make_inputs(base):
    made = small_anndata(70, 12, seed=0)
    made.X = made.X.tocsc()
    made.obs["n"] = made.obs["n"].astype("Int64")
    write_anndata(made, base / "by_columns.zarr")
    more = small_anndata(90, 12, seed=1)
    more.obs_names = [*made.obs_names, *more.obs_names[:20]]
    more.write_h5ad(base / "rows.h5ad")


def add(base, name, place):
    warnings.simplefilter("ignore")
    WriteOptions.part_rows = lambda *_: 11  # several blocks and buckets
    store_channel._LOOK_S = 0.1
    DatasetCollection(base / f"{name}.zarr").add_adatas(
        [str(base / "by_columns.zarr"), str(base / "rows.h5ad")],
        rng=7,
        dataset_size=90,
        n_obs_per_chunk=8,
        shard_size=32,
        groupby="kind",
        world=place,
    )
    assert "torch" not in sys.modules  # neither one process nor ranks without a process group need it


def start(base, name, size, fault=None):
    """Write by so many processes; return by rank how each ended, "" = well."""
    children, port = {}, hold_port()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            ended = base / f"{os.getpid()}.txt"
            signal.alarm(60)
            try:
                if fault is not None and rank == 1:
                    end_at(*FAULTS[fault])
                add(base, name, Place(rank=rank, world_size=size, master_addr="127.0.0.1", master_port=port))
                ended.write_text("")
            except BaseException as error:  # noqa: BLE001  (told to the test)
                ended.write_text("".join(traceback.format_exception_only(error)))
            os._exit(0)
        children[child] = rank
    ends = {}
    while children:
        child, _ = os.wait()
        path = base / f"{child}.txt"
        ends[children.pop(child)] = path.read_text() if path.exists() else "killed"
    return [ends[rank] for rank in range(size)]


def main(base):
    if os.fork() == 0:
        make_inputs(base)
        os._exit(0)
    assert os.wait()[1] == 0
    told = {f"whole-{size}": start(base, f"whole-{size}", size) for size in (1, 3)}
    for fault, size in (("first-pass", 3), ("second-pass", 1), ("bad-input", 2)):
        told[fault] = start(base, fault, 2, fault)
        told[f"{fault}-resumed"] = start(base, fault, size)
    (base / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
