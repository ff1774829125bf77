"""Files that crops lie in, known beforehand."""

import itertools
import logging

import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline, Take
from rankwise.data.crops.index.pipeline import most_files


@pytest.mark.parametrize("extent", [1, 2, 5, 8, 9, 12])
def test_no_crop_touches_more(tmp_path, extent):
    """The count is reached by some crop and exceeded by none."""
    zarr.create_array(tmp_path / "a.zarr", shape=(40, 8), chunks=(4, 4), shards=(8, 4), dtype="u1")
    index = CropIndex(tmp_path / "a.zarr", shape=(extent, 2), num_random=4)
    touched = [
        len({(z // 8, y // 4) for z, y in itertools.product(range(start, start + extent), range(first, first + 2))})
        for start in range(41 - extent)
        for first in range(7)
    ]
    assert most_files(index, num_crops=1) == max(touched)
    assert most_files(index, num_crops=1000) == 10


def test_fields_and_channels_add_up(volumes):
    """Every field has files of its own."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), fields={"image": Take(), "label": Take()})
    alone = CropIndex(volumes.images, shape=(8, 8, 8), fields={"image": Take()})
    assert most_files(index, num_crops=2) == 2 * most_files(alone, num_crops=2)


def test_more_files_than_stay_open_are_said_at_construction(volumes, caplog, monkeypatch):
    """Before the first step, on the main rank alone."""
    from rankwise.data.store.files import handles

    monkeypatch.setattr(handles, "MOST_FILES", 16)
    index = CropIndex(volumes.images, shape=(8, 8, 8))
    with caplog.at_level(logging.WARNING, "rankwise"):
        IndexPipeline(index, order=Order(index, batch_size=16), device=None).close()
    (text,) = [record.getMessage() for record in caplog.records]
    assert "files, its reader keeps 16 open" in text
