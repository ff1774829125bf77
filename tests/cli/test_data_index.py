"""`rankwise data index`."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

from rankwise.data.store import Catalogue

NO_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails
from rankwise.cli import main
main()
"""


@pytest.fixture
def data(tmp_path):
    group = zarr.create_group(tmp_path / "data" / "g.zarr")
    group.create_array("a", shape=(8, 8), chunks=(4, 4), dtype="u2", fill_value=1)
    group.create_array(
        "b", data=np.zeros((4, 4), "f4"), chunks=(2, 2), shards=(4, 4), compressors=zarr.codecs.GzipCodec()
    )
    return tmp_path / "data"


@pytest.fixture
def index(command):
    return lambda *words: command("data", "index", *words)


def test_a_catalogue_is_written_and_summed_up(data, tmp_path):
    """The command writes the catalogue and says what is in it, without torch, and without colours in a pipe."""
    command = [sys.executable, "-c", NO_TORCH, "data", "index", data, "-o", tmp_path / "c.idx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "found 0 images and 2 plain arrays" in done.stdout
    assert "v3 uint16, zstd: by the fast decoders" in done.stdout
    assert "sharded v3 float32, gzip: by zarr-python" in done.stdout
    assert "\x1b" not in done.stdout
    assert [ref.name for ref in Catalogue.load(tmp_path / "c.idx", verify=True).images()] == ["g.zarr/a", "g.zarr/b"]


def test_the_summary_as_json(data, tmp_path, index):
    """`--json` prints one object with the same facts."""
    summary = json.loads(index(data, "-o", tmp_path / "c.idx", "--json", "--workers", 2)[1])
    assert (summary["num_plain_arrays"], summary["decoded_bytes"], summary["bad"]) == (2, 8 * 8 * 2 + 4 * 4 * 4, [])
    assert summary["written_bytes"] == (tmp_path / "c.idx").stat().st_size


def test_what_cannot_be_read_fails_unless_skipped(data, tmp_path, index):
    """A damaged array is named with its reason; nothing is written without --skip-bad."""
    (data / "g.zarr" / "a" / "zarr.json").write_text("{")
    code, _, warned = index(data, "-o", tmp_path / "c.idx")
    assert code == 1
    assert f"not read: {data}/g.zarr/a: " in warned
    assert "is not JSON" in warned
    assert not (tmp_path / "c.idx").exists()
    code, _, warned = index(data, "-o", tmp_path / "c.idx", "--skip-bad")
    assert code == 0
    assert "not read" in warned
    assert list(Catalogue.load(tmp_path / "c.idx").bad) == [f"{data}/g.zarr/a"]


def test_nothing_found_is_a_failure(tmp_path, index):
    """An empty folder, or a wrong path, writes nothing."""
    (tmp_path / "empty").mkdir()
    code, _, warned = index(tmp_path / "empty", "-o", tmp_path / "c.idx")
    assert (code, warned) == (1, "no Zarr array was found; nothing was written\n")
    assert index(tmp_path / "nothing", "-o", tmp_path / "c.idx")[0] == 1
    assert not (tmp_path / "c.idx").exists()


def test_an_output_that_cannot_be_written_is_one_message(data, tmp_path, index):
    """A wrong output folder is said without a traceback."""
    code, _, warned = index(data, "-o", tmp_path / "nothing" / "c.idx")
    assert (code, warned.count("\n")) == (2, 1)
    assert "cannot be written" in warned


def test_help_has_examples(index):
    """`--help` shows how it is called."""
    code, told, _ = index("--help")
    assert code == 0
    assert "rankwise data index /data/screen.zarr -o screen.idx" in " ".join(told.split())
    assert "--skip-bad" in told
