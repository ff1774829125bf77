"""Several ranks write one collection: the bytes are those of one, whoever of them dies."""

import contextlib
import hashlib
import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import anndata
import numpy as np
import pytest

from rankwise._process.place import Place
from rankwise.data.rows import DatasetCollection, verify_rows
from rankwise.data.rows.collection.journal import locked, work_folder
from rankwise.data.rows.datasets.search import find_datasets
from rankwise.errors import DataError, RankwiseError
from rankwise.testing.ranks import run_ranks
from rankwise.testing.stores.small_rows import small_anndata

SCRIPT = Path(__file__).with_name("ranked.py")


def files(folder):
    """A hash of every file, the metadata with the manifest included."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("ranks")
    done = subprocess.run([sys.executable, SCRIPT, base], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return base


@pytest.fixture(scope="module")
def told(base):
    return json.loads((base / "told.json").read_text())


def test_bytes_do_not_depend_on_how_many_write(base, told):
    """All files of the collection are the same, byte for byte, and nothing is left beside it."""
    assert told["whole-3"] == [""] * 3
    whole = files(base / "whole-1.zarr")
    assert len([name for name in whole if "/X/data/c/" in name]) > 4
    assert files(base / "whole-3.zarr") == whole
    assert not (base / "whole-3.zarr.writing").exists()


def write_twice(place, seeds, ranks=None):
    """Write a collection and add to it, also where only the ranks are said; return what was printed."""
    made, options = DatasetCollection(place), {"n_obs_per_chunk": 8, "shard_size": 8, "progress": True}
    with contextlib.redirect_stderr(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that a rewrite may pay
        made.add_adatas([small_anndata(60, 6)], rng=seeds[0], **options)
        made.add_adatas([small_anndata(30, 6, seed=1)], rng=seeds[1], world=ranks, **options)
    return printed.getvalue()


def write_here(world, place):
    """Runs on every rank: the world is that of the process group."""
    printed = write_twice(place, (3 + world.rank, 9), Place(rank=world.rank, world_size=world.world_size))
    made = DatasetCollection(place)
    return len(made.obs(["src_row"])), [write["seed"] for write in made.manifest["writes"]], printed


def test_ranks_of_a_process_group_write_together(tmp_path):
    """Without a word the ranks of a process group write together, by the seed of rank 0, which alone shows progress."""
    (*first, shown), (*second, nothing) = run_ranks(write_here, 2, str(tmp_path / "two.zarr"))
    assert first == second == [90, [3, 9]]
    assert re.findall(r"\w+ing \d+/\d+", shown) == ["reading 60/60", "writing 60/60", "reading 30/30", "writing 30/30"]
    assert nothing == ""
    write_twice(tmp_path / "one.zarr", (3, 9))
    assert files(tmp_path / "two.zarr") == files(tmp_path / "one.zarr")


def fail_on_rank_1(world, place, step):
    """Runs on every rank: rank 1 cannot read its input in this step, and rank 0 goes on with its own."""
    from rankwise.data.rows.collection import writer

    real = getattr(writer, step)

    def fail(*job, **facts):
        if world.rank == 1:
            raise DataError("a.h5ad cannot be read")
        return real(*job, **facts)

    with pytest.MonkeyPatch.context() as patch:  # the ranks serve other tests too
        patch.setattr(writer, step, fail)
        with pytest.raises(RankwiseError) as caught:
            DatasetCollection(place).add_adatas([small_anndata(60, 6)], rng=3)
    return f"{caught.typename}: {caught.value}"


@pytest.mark.parametrize(("step", "held"), [("Job", False), ("dataset_tasks", True)])
def test_a_rank_that_fails_by_itself_leaves_what_one_process_leaves(tmp_path, step, held):
    """Nothing where nothing was done; else the next call clears it, without a word about other inputs."""
    place = tmp_path / "c.zarr"
    said = run_ranks(fail_on_rank_1, 2, str(place), step)
    wanted = "DataError: a.h5ad cannot be read"
    assert re.fullmatch(rf"DesyncError: rank 1 failed in .*: {wanted}", said[0])
    assert said[1] == wanted
    work = work_folder(place)
    assert (work / "journal.json").exists() == held
    assert list(work.glob("*")) == [] or held
    made = DatasetCollection(place).add_adatas([small_anndata(30, 6)], rng=0)  # warnings are errors
    assert len(made.obs(["n"])) == 30
    assert not work.exists()


def write_against_another(world, place):
    """Runs on every rank: another job holds the collection."""
    with pytest.raises(RankwiseError) as caught:
        DatasetCollection(place).add_adatas([small_anndata()], world=world)
    return f"{caught.typename}: {caught.value}"


def test_a_second_job_is_kept_out(tmp_path):
    """While one job writes, another one, of however many ranks, is refused and disturbs nothing."""
    made = DatasetCollection(tmp_path / "c.zarr")
    with (
        locked(work_folder(made.path)),
        pytest.raises(DataError, match="another process is writing this collection"),
    ):
        made.add_adatas([small_anndata()])
    with locked(work_folder(made.path)):
        told = run_ranks(write_against_another, 2, str(made.path))
    assert "DataError: another process is writing this collection" in told[0]
    assert re.match("DesyncError: rank 0 failed in .*: DataError: another process is writing this collection", told[1])
    assert made.is_empty
    made.add_adatas([small_anndata()])
    assert not made.is_empty


def test_every_row_is_its_source(base):
    """What was written by one process is what came, by rows and by columns, with names made unique."""
    assert verify_rows(base / "whole-1.zarr") == []
    sources = {
        str(base / "by_columns.zarr"): anndata.read_zarr(base / "by_columns.zarr"),
        str(base / "rows.h5ad"): anndata.read_h5ad(base / "rows.h5ad"),
    }
    names = []
    for place in find_datasets(base / "whole-1.zarr"):
        made = anndata.read_zarr(place)
        assert made.obs["kind"].cat.codes.is_monotonic_increasing
        for row, (label, number) in enumerate(zip(made.obs["src_path"], made.obs["src_row"], strict=True)):
            source = sources[label]
            np.testing.assert_array_equal(made.X[row].toarray()[0], source.X[number].toarray()[0])
            assert made.obs["n"].iloc[row] == source.obs["n"].iloc[number]
            assert made.obs_names[row] in {source.obs_names[number], f"{source.obs_names[number]}-1"}
        names += made.obs_names.tolist()
    assert len(set(names)) == len(names) == 160
    assert sum(name.count("-") == 2 for name in names) == 70


@pytest.mark.parametrize("fault", ["first-pass", "second-pass"])
def test_a_killed_process_ends_all_and_others_go_on(base, told, fault):
    """The one that is left says who is gone; fewer or more processes finish the work, to the same bytes."""
    assert told[fault][1] == "killed"
    assert "DesyncError: rank 0 lost the other ranks" in told[fault][0]
    assert "rank 1 has ended without a message" in told[fault][0]
    assert set(told[f"{fault}-resumed"]) == {""}
    whole = files(base / "whole-1.zarr")
    assert files(base / f"{fault}.zarr") == whole


def test_an_error_of_one_process_ends_all(base, told):
    """An input that one process cannot read ends the others with that error, and nobody waits."""
    assert "DataError: rows 5 to 6 of X cannot be read: no such luck" in told["bad-input"][1]
    assert re.search("DesyncError: rank 1 failed in .*: DataError: rows 5 to 6 of X cannot be", told["bad-input"][0])
    assert files(base / "bad-input.zarr") == files(base / "whole-1.zarr")
