"""Writing a collection is all or nothing, whenever it is killed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection import journal
from rankwise.data.rows.datasets.on_disk import array_checksums
from rankwise.data.rows.datasets.search import find_datasets

BOOT = journal.this_boot()
SCRIPT = Path(__file__).with_name("killed.py")
_spec = importlib.util.spec_from_file_location("killed", SCRIPT)
killed = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(killed)


def members(folder):
    """What readers find: checksums of every array of every dataset."""
    return {Path(place).name: array_checksums(Path(place)) for place in find_datasets(folder)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("kills")
    done = subprocess.run([sys.executable, SCRIPT, base], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "killed\n"), done.stderr
    return base


@pytest.fixture(scope="module")
def undisturbed(base):
    made = {}
    for reshuffle in (False, True):
        folder = base / f"whole-{reshuffle}.zarr"
        copytree(base / "before.zarr", folder)
        killed.add(folder, reshuffle=reshuffle)
        made[reshuffle] = members(folder)
    return made


@pytest.mark.parametrize(("name", "reshuffle"), killed.CASES)
def test_a_kill_leaves_the_collection_as_it_was_and_the_work_goes_on(base, undisturbed, name, reshuffle):
    """After SIGKILL readers see the old datasets or all new ones; the same call ends as an undisturbed one."""
    folder = base / f"{name}-{reshuffle}.zarr"
    committed = name in {"after-commit", "dropped"}
    assert members(folder) == (undisturbed[reshuffle] if committed else members(base / "before.zarr"))
    killed.add(folder, reshuffle=reshuffle)
    assert members(folder) == undisturbed[reshuffle]
    manifest = DatasetCollection(folder).manifest
    assert sorted(manifest["datasets"]) == sorted(undisturbed[reshuffle])
    assert [len(write["sources"]) for write in manifest["writes"]] == [1, 3 if reshuffle else 2]
    assert sorted(path.name for path in folder.glob("dataset_*")) == sorted(undisturbed[reshuffle])
    assert not folder.with_name(f"{folder.name}.writing").exists()


def test_other_work_throws_the_unfinished_away(base):
    """A call with other parameters says that it drops what an earlier one left, and is whole itself."""
    folder = base / "half-dataset-other.zarr"
    copytree(base / "before.zarr", folder)
    work = folder.with_name(f"{folder.name}.writing")
    (work / "buckets").mkdir(parents=True)
    (work / "journal.json").write_text(
        json.dumps({"plan": "another", "boot": BOOT, "names": ["dataset_9"], "dropped": []})
    )
    with (
        pytest.warns(UserWarning, match="unfinished writing of other inputs"),
        pytest.warns(UserWarning, match="new rows are shuffled among themselves"),
    ):
        DatasetCollection(folder).add_adatas(killed.inputs()[:1], rng=0, matrices=["X"])
    assert len(find_datasets(folder)) == 2


def test_work_from_before_a_power_cut_is_begun_again(base, undisturbed):
    """Files of an earlier run of the machine may lack what was never on the disk: nothing of them is used."""
    folder = base / "power.zarr"
    copytree(base / "before.zarr", folder)
    work = folder.with_name(f"{folder.name}.writing")
    work.mkdir()
    (work / "journal.json").write_text(
        json.dumps({"plan": "any", "boot": "earlier", "names": ["dataset_1"], "dropped": []})
    )
    (work / "rest").mkdir()
    killed.add(folder, reshuffle=False)
    assert members(folder) == undisturbed[False]
