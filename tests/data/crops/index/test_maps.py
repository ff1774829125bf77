"""Maps of labels: which cells hold one."""

import tracemalloc

import numpy as np
import zarr

from rankwise.data.crops import plain_level
from rankwise.data.crops.index.cells import label_cells
from rankwise.data.store import BoxReader, read_meta


def test_a_map_of_labels_marks_each_cell_that_holds_one(strided):
    """Whatever the chunks: the map is that of all elements, found by reading each chunk once, a few at a time."""
    image, label = strided
    level = image["label"][0]
    for pool in ((4, 4, 4), (3, 7, 130), (1, 16, 2)):
        with BoxReader(cache=0) as reader:
            cells = label_cells(level, pool, None, reader)
            assert reader.stats.chunks_decoded + reader.stats.fill_chunks == 5 * 13 * 13
        padded = np.pad(label, [(0, -size % step) for size, step in zip(label.shape, pool, strict=True)])
        split = [n for size, step in zip(padded.shape, pool, strict=True) for n in (size // step, step)]
        np.testing.assert_array_equal(cells, padded.reshape(split).any(axis=(1, 3, 5)))


def test_labels_are_read_in_bounded_memory(tmp_path):
    """Labels of any size take a few chunks' memory while they are looked at, and a bit for each cell afterwards."""
    zarr.create_array(tmp_path / "l", shape=(1 << 10, 1 << 9, 1 << 9), dtype="u4", chunks=(64, 64, 64))  # 1 GiB
    tracemalloc.start()
    with BoxReader(cache=0) as reader:
        cells = label_cells(plain_level(read_meta(tmp_path / "l")), (8, 8, 8), None, reader)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cells.shape == (128, 64, 64)
    assert peak < 128 << 20
