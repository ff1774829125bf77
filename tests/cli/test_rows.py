"""`rankwise rows`."""

import json
import re

import anndata
import pytest

from rankwise.cli.rows import plain_failure
from rankwise.data.rows import DatasetCollection
from rankwise.errors import RankFailure
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.fixture
def stopped(command, monkeypatch):
    """Calls the command line, with Ctrl-C in a function: ``stopped("writer._advise", "rows", ...)``."""

    def stop(*_):
        raise KeyboardInterrupt

    def call(where, *words):
        with monkeypatch.context() as interrupted:
            interrupted.setattr(f"rankwise.data.rows.collection.{where}", stop)
            return command(*words)

    return call


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    small_anndata(90, 9, seed=0).write_h5ad(folder / "a.h5ad")
    write_anndata(small_anndata(70, 9, seed=1), folder / "b.zarr")
    return [folder / "a.h5ad", folder / "b.zarr"]


def test_write_info_verify(tmp_path, inputs, command):
    """A collection is written by names, described, and found whole; damage is named."""
    out = tmp_path / "c.zarr"
    code, said, _ = command("rows", "write", out, *inputs, "--layer", "counts", "--seed", 3, "--rows-per-chunk", 16)
    assert (code, said) == (0, f"{out}: 160 rows written as dataset_0, seed 3\n")
    code, said, _ = command("rows", "info", out)
    assert code == 0
    assert f"{out}: 160 rows in 1 dataset\n" in said
    assert "chunks of 16 rows with edges on row edges, sharded" in said
    assert f"written with seed 3 from {inputs[0]} (90 rows), {inputs[1]} (70 rows) as dataset_0" in said
    assert "  obs: kind, n, name, src_path, src_row\n" in said
    facts = json.loads(command("rows", "info", out, "--json")[1])
    assert list(facts["datasets"][0]["matrices"]) == ["X", "layers/counts"]
    assert command("rows", "verify", out) == (0, f"{out} is intact\n", "")
    code, said, _ = command("rows", "verify", out, "--sources")
    assert (code, said) == (0, f"{out} is intact, and its rows match their sources\n")
    [first, *_] = sorted((out / "dataset_0" / "X" / "data").rglob("c/*"))
    first.write_bytes(bytes(reversed(first.read_bytes())))
    code, said, _ = command("rows", "verify", out)
    assert (code, said) == (1, "dataset_0/X/data changed after it was written: its checksum differs\n")


def test_a_call_that_was_stopped_at_its_very_end(tmp_path, inputs, command, stopped):
    """The rows are part of the collection by then: the same call says so, and writes nothing twice."""
    words = ["rows", "write", tmp_path / "c.zarr", inputs[0], "--seed", 0]
    assert stopped("writer._advise", *words)[0] == 130
    code, said, _ = command(*words)
    before = "by an earlier call that was stopped just before its end"
    assert (code, said) == (0, f"{tmp_path}/c.zarr: 90 rows written as dataset_0, seed 0 {before}\n")


def test_variables_are_named_one_a_line(tmp_path, inputs, command):
    """Names may have spaces in them; empty lines are none."""
    made = small_anndata(20, 3)
    made.var_names = ["gene one", "two", "three"]
    (tmp_path / "genes.txt").write_text("gene one\n\nthree \n")
    place = write_anndata(made, tmp_path / "a.zarr")
    assert command("rows", "write", tmp_path / "c.zarr", place, "--genes", tmp_path / "genes.txt")[0] == 0
    assert anndata.read_zarr(tmp_path / "c.zarr" / "dataset_0").var_names.tolist() == ["gene one", "three"]
    (tmp_path / "genes.bin").write_bytes(b"\xff\xd8")
    for wrong in ("genes.bin", "none.txt"):
        code, _, said = command("rows", "write", tmp_path / "new.zarr", place, "--genes", tmp_path / wrong)
        assert code == 2
        assert re.match(f"rankwise: --genes must be a text file .*{wrong} is not: ", said)


def test_ranks_share_the_writing(tmp_path, inputs, command):
    """`--ranks 2` starts two processes, and the collection is the one that a single process writes."""
    words = [*inputs, "--seed", 3, "--rows-per-chunk", 8, "--shard-size", "2KB"]
    command("rows", "write", tmp_path / "one.zarr", *words)
    code, said, _ = command("rows", "write", tmp_path / "two.zarr", *words, "--ranks", 2)
    assert (code, said) == (0, f"{tmp_path}/two.zarr: 160 rows written as dataset_0, seed 3\n")
    one, two = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "one.zarr", tmp_path / "two.zarr")
    )
    assert one == two
    assert len(one) > 30


def test_ranks_inside_ranks_are_refused(tmp_path, inputs, command, monkeypatch):
    """A rank of a job step does not start others."""
    step = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_ADDR": "here", "MASTER_PORT": 29500}
    for name, value in step.items():
        monkeypatch.setenv(name, str(value))
    code, _, said = command("rows", "write", tmp_path / "c.zarr", inputs[0], "--ranks", 2)
    assert code == 2
    assert "this process is already rank 1 of 2 (torchrun): leave out --ranks" in said


def test_what_converting_would_buy(tmp_path, inputs, command):
    """Of an ordinary AnnData store the waste is told, from its metadata."""
    code, said, _ = command("rows", "info", inputs[1])
    assert code == 0
    assert "edges inside rows" in said
    made = small_anndata(300, 20)
    made.X, made.layers["counts"] = made.X.tocsc(), made.X
    place = write_anndata(made, tmp_path / "d.zarr")
    code, said, _ = command("rows", "info", place)
    assert "stored column by column (CSC)" in said
    assert f"{place}/X: readable by row" in said


def test_wrong_usage_is_one_message(tmp_path, inputs, command):
    """What is not there, or cannot be compared, is said without a traceback."""
    code, _, said = command("rows", "write", tmp_path / "c.zarr", inputs[0], "--layer", "raw")
    assert (code, said.count("\n")) == (2, 1)
    assert "has no 'layers/raw'" in said
    assert not (tmp_path / "c.zarr").exists()
    DatasetCollection(tmp_path / "c.zarr")
    code, _, said = command("rows", "verify", tmp_path / "c.zarr")
    assert code == 2
    assert "has no manifest" in said
    code, _, said = command("rows", "info", inputs[0])
    assert code == 2
    assert "write it to a Zarr collection first" in said


def test_a_stopped_writing_says_how_to_go_on(tmp_path, inputs, command, stopped):
    """Ctrl-C ends with the code of a shell and one line, and the same command goes on."""
    words = ["rows", "write", tmp_path / "c.zarr", inputs[0], "--seed", 0]
    code, _, said = stopped("buckets.Buckets.add", *words)
    assert (code, said.count("\n")) == (130, 1)
    assert f"rankwise: stopped. {tmp_path}/c.zarr is unchanged. The same call continues where it stopped" in said
    assert command(*words)[0] == 0


@pytest.mark.filterwarnings("default")
def test_warnings_are_for_readers_of_a_terminal(tmp_path, inputs, command):
    """A warning is one line without a place in our source; progress comes as lines where stderr is no terminal."""
    code, _, said = command("rows", "write", tmp_path / "c", inputs[0], "--progress")
    assert code == 0
    assert said.splitlines()[0] == f"rankwise: warning: names of collections must end in .zarr, got {tmp_path}/c"
    assert [line.split(" rows")[0] for line in said.splitlines()[1:]] == ["reading 90/90", "writing 90/90"]


def test_ranks_that_fail_say_it_as_one_process_does(tmp_path, inputs, command):
    """The error of a rank is its message, without a traceback; what is no error of ours keeps it. Nothing is left."""
    code, _, said = command("rows", "write", tmp_path / "c.zarr", tmp_path / "nothing.h5ad", "--ranks", 2)
    assert code == 2
    assert re.fullmatch(r"rankwise: rank [01]: nothing found at \S+/nothing.h5ad, searched from \S+\n", said)
    assert list(tmp_path.iterdir()) == []  # neither an empty collection, nor the folder in which it is prepared
    other = RankFailure("all of it", rank=1, traceback="Traceback\nZeroDivisionError: division by zero")
    assert plain_failure(other) is other


def test_sizes_and_variables_on_the_command_line(tmp_path, inputs, command):
    """A number is rows, as in Python; --join inner takes the shared variables; a mistake leaves nothing behind."""
    made = small_anndata(20, 9)[:, 3:].copy()
    place = write_anndata(made, tmp_path / "some.zarr")
    out = tmp_path / "c.zarr"
    words = ["rows", "write", out, inputs[0], place, "--seed", 0]
    assert command(*words, "--dataset-size", 60, "--join", "inner")[0] == 0
    assert [group["obs/n"].shape[0] for group in DatasetCollection(out)] == [55, 55]
    assert DatasetCollection(out).tables_of_variables()[""].index.tolist() == made.var_names.tolist()
    code, _, said = command("rows", "write", tmp_path / "d.zarr", inputs[0], inputs[0])
    assert code == 2
    assert "is among the inputs twice" in said
    assert not list(tmp_path.glob("d.zarr*"))
