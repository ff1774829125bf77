"""The audit of a collection."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from rich.console import Console

from rankwise.data.crops import CropIndex
from rankwise.data.crops.audit.display import audit_facts, group_title, show_audit
from rankwise.data.crops.audit.judgement import AuditOptions, audit
from rankwise.data.store import build_catalogue
from rankwise.errors import ConfigError, DataError

CROP = (12, 20, 24)


def test_arrays_stored_alike_are_one_group(write, tmp_path):
    """Groups by codec, chunks and dtype; every array once, however it is named; the mean over shapes."""
    for name in ("c/1", "c/2"):
        write(name)
    write("c/3", shape=(30, 40, 50))
    write("c/4", compressors=None)
    report = audit([str(tmp_path / "c"), str(tmp_path / "c" / "1")], AuditOptions(crop=CROP))
    assert [(group.codec, len(group.fittings)) for group in report.groups] == [("zstd-1", 3), ("none", 1)]
    singles = [
        audit([str(tmp_path / "c" / name)], AuditOptions(crop=CROP, batch=1)).groups[0].cost.chunks for name in "123"
    ]
    together = audit([str(tmp_path / "c" / name) for name in "123"], AuditOptions(crop=CROP)).groups[0]
    assert together.cost.chunks == pytest.approx(sum(singles) / 3)


def test_metadata_alone(write):
    """With nothing but metadata left of a store the audit still says what crops cost."""
    path = write()
    whole = audit([path], AuditOptions(crop=CROP, sample_files=0))
    shutil.rmtree(Path(path, "c"))
    assert audit([path], AuditOptions(crop=CROP, sample_files=0)) == whole
    assert whole.groups[0].sizes_from.startswith("metadata only")


def test_leading_axes_are_one_element(write):
    """A crop of 2 axes out of an array of 3 takes one plane."""
    [group] = audit([write()], AuditOptions(crop=(20, 24), batch=1)).groups
    assert group.fittings[0].crop == (1, 20, 24)


def test_what_does_not_fit_is_listed(write, tmp_path):
    """Arrays with too few axes, empty ones and damaged ones are named; if nothing is left, that is an error."""
    zarr.open_group(tmp_path / "g")
    write("g/volume")
    write("g/line", shape=(10,), chunks=(5,), shards=None)
    zarr.create_array(tmp_path / "g/empty", shape=(0, 5, 5), dtype="u1")
    write("g/broken")
    (tmp_path / "g/broken/zarr.json").write_text('{"node_type": "array", "zarr_format": 3}')
    report = audit([str(tmp_path / "g")], AuditOptions(crop=CROP))
    assert [len(group.fittings) for group in report.groups] == [1]
    said = "\n".join(report.skipped)
    assert len(report.skipped) == 3
    for words in ("has 1 axes, the crop 3", "is empty", "broken"):
        assert words in said
    with pytest.raises(ConfigError, match="at least 4 axes"):
        audit([str(tmp_path / "g")], AuditOptions(crop=(1, 1, 1, 1)))


def test_errors(write, tmp_path):
    """Nothing there, no extent, a dtype that elements cannot become."""
    with pytest.raises(DataError, match="nowhere"):
        audit([str(tmp_path / "nowhere")], AuditOptions(crop=CROP))
    with pytest.raises(ConfigError, match="extent >= 1"):
        audit([write()], AuditOptions(crop=(0, 4, 4)))
    with pytest.raises(ConfigError, match="imaginary"):
        audit([write("z", dtype="complex64")], AuditOptions(crop=CROP, dtype=np.dtype("f4")))


def test_a_folder_of_stores(write, tmp_path):
    """A folder that is no store itself is searched one level deep."""
    for name in ("many/a.zarr", "many/b.zarr"):
        write(name)
    (tmp_path / "many" / "notes").mkdir()
    (tmp_path / "many" / "zarr.json").unlink(missing_ok=True)
    assert len(audit([str(tmp_path / "many")], AuditOptions(crop=CROP)).groups[0].fittings) == 2


@pytest.fixture
def image(tmp_path):
    """An OME-Zarr image (t, c, y, x) of two levels with a label image."""
    values = np.random.default_rng(0).integers(1, 999, (2, 3, 64, 64)).astype("u2")
    group = zarr.create_group(tmp_path / "image.zarr", zarr_format=3)
    for level in (0, 1):
        data = values[..., :: level + 1, :: level + 1]
        group.create_array(str(level), data=data, chunks=(1, 1, 16, 16), shards=(1, 1, 32, 32))
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space"} for name in "yx"]
    datasets = [
        {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0, 1.0 + n, 1.0 + n]}]}
        for n in (0, 1)
    ]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return str(tmp_path / "image.zarr")


def test_levels_are_named_and_channels_are_counted(image):
    """Each level is a group of its own that says what it is; a crop takes all channels, as in an index, or so many."""
    report = audit([image], AuditOptions(crop=(20, 20), batch=1))
    console = Console(width=200, record=True, file=io.StringIO())
    show_audit(report, console)
    said = console.export_text()
    for level, group in enumerate(report.groups):
        assert group_title(group).startswith(f"level {level}: 1 x uint16")
        assert f"arrays: {image}/{level} (level {level})" in said
        assert group.fittings[0].crop == (1, 3, 20, 20)
        assert group.cost.asked_bytes == 3 * 20 * 20 * 2
    index = CropIndex(image, shape=(20, 20))
    assert np.prod(index.fields["image"].shape) * 2 == report.groups[0].cost.asked_bytes
    one = audit([image], AuditOptions(crop=(20, 20), batch=1, channels=1)).groups[0].cost
    assert one.chunks * 3 == pytest.approx(report.groups[0].cost.chunks)
    assert audit([image], AuditOptions(crop=(2, 2, 20, 20))).groups[0].fittings[0].crop == (2, 2, 20, 20)


def test_a_catalogue_is_audited_as_its_stores(image, tmp_path):
    """The file of a catalogue stands for what it lists."""
    build_catalogue([image]).save(tmp_path / "all.idx")
    stores, listed = (audit([uri], AuditOptions(crop=(20, 20))) for uri in (image, str(tmp_path / "all.idx")))
    assert audit_facts(stores) == audit_facts(listed)


def test_waste_is_one_thing(write):
    """Bytes decoded, and read, per byte of crop: what the table divides, what JSON holds, what a reader measures."""
    path = write()
    report = audit([path], AuditOptions(crop=CROP, batch=4))
    cost = report.groups[0].cost
    facts = audit_facts(report)["groups"][0]["cost"]
    assert facts["decode_waste"] == cost.decode_bytes / cost.asked_bytes
    assert facts["read_amplification"] == cost.read_bytes / cost.asked_bytes
    alone = audit([path], AuditOptions(crop=CROP, batch=1)).groups[0].cost
    assert cost.decode_waste < alone.decode_waste  # crops of a batch share chunks


def test_facts_are_json(write):
    """Everything an audit says survives JSON."""
    report = audit([write()], AuditOptions(crop=CROP, threads=3))
    facts = json.loads(json.dumps(audit_facts(report)))
    [group] = facts["groups"]
    assert group["cost"]["decode_waste"] == report.groups[0].cost.decode_waste
    assert facts["threads"] == 3
    assert group["arrays"][0]["crop"] == list(CROP)


def test_more_threads_are_expected_to_be_faster(write):
    """The estimate divides the work among the threads."""
    path = write()
    one, four = (audit([path], AuditOptions(crop=CROP, threads=n)).groups[0].crops_per_s for n in (1, 4))
    assert four == pytest.approx(4 * one)


def test_no_heavy_imports(write):
    """An audit loads neither torch nor numba."""
    code = (
        "import sys; from rankwise.data.crops.audit.judgement import AuditOptions, audit\n"
        f"audit([{write()!r}], AuditOptions(crop=(8, 8, 8)))\n"
        "print([name for name in ('torch', 'numba', 'zarr') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"
