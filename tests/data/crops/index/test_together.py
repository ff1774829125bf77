"""Two real ranks, one of which looks at the stores."""

import sys

import numpy as np
import pytest

from rankwise.data.crops import CropIndex, Foreground
from rankwise.data.store import build_catalogue
from rankwise.errors import ConfigError, DataError, WorldError
from rankwise.testing import run_ranks

SHAPE = (4, 8, 8)


def touched(folder):
    """A list that grows by each path below a folder that this process opens or lists."""
    seen = []

    def look(event, arguments):
        if event in {"open", "os.listdir", "os.scandir"} and str(arguments[0]).startswith(folder):
            seen.append(str(arguments[0]))

    sys.addaudithook(look)
    return seen


def facts(index):
    ids = np.arange(len(index))
    found = index.places(ids, seed=3)
    return index.fingerprint, len(index), found.images.tolist(), found.starts.tolist()


def of_a_catalogue(world, folder, path):
    seen = touched(folder)
    index = CropIndex(path, shape=SHAPE, world=world)
    return facts(index), seen


def test_only_the_main_rank_opens_the_catalogue(volumes, tmp_path):
    """Both ranks get the index of one rank; the file is opened once, by rank 0, and the arrays by nobody."""
    folder = volumes.images[0]["image"].parent
    path = str(tmp_path / "all.idx")
    build_catalogue([image["image"] for image in volumes.images]).save(path)
    alone = facts(CropIndex(path, shape=SHAPE))
    for rank, (found, seen) in enumerate(run_ranks(of_a_catalogue, 2, str(tmp_path), path)):
        assert found == alone
        assert seen == ([path] if rank == 0 else [])
    for found, seen in run_ranks(of_a_catalogue, 2, str(folder), path):
        assert (found, seen) == (alone, [])


def with_labels(world, folder, images):
    calls = []

    def left_half(image):
        calls.append(image.name)
        return np.array([[[True, False]]])

    options = {"num_random": 20, "foreground": Foreground("label", 0.5), "mask": left_half}
    seen = touched(folder)
    # what the other ranks are given is not looked at
    given = images if world.is_main else "/nowhere/at/all.zarr"
    index = CropIndex(given, shape=SHAPE, where=lambda image: image.name != "image1.zarr", world=world, **options)
    num_opened = len(seen)
    parts = index.split(by="array", fractions=(0.5, 0.5), seed=2)
    return facts(index), [facts(part) for part in parts], calls, num_opened, len(seen)


def test_only_the_main_rank_reads_labels_and_masks(volumes):
    """Maps of labels and masks arrive with the images, and the parts of a split need no further look."""
    folder = str(volumes.images[0]["image"].parent)
    main, other = run_ranks(with_labels, 2, folder, volumes.images)
    assert main[:2] == other[:2]
    assert (main[2], other[2]) == (["image0.zarr", "image2.zarr"], [])
    assert main[3] == main[4] > 0
    assert other[3] == other[4] == 0


def failing(world, given, label):
    try:
        CropIndex(given, shape=SHAPE, labels={"n": lambda _: label and world.rank}, world=world)
    except (DataError, ConfigError, WorldError) as error:
        return f"{type(error).__name__}: {error}", world.all_reduce(1)
    return "nothing was raised", 0


def test_a_failed_read_is_raised_on_all_ranks(tmp_path):
    """No rank waits for an index that never comes; all hear why, and can go on together."""
    for rank, (message, reached) in enumerate(run_ranks(failing, 2, str(tmp_path / "gone.zarr"), 0)):
        assert "gone.zarr" in message
        assert message.startswith("DesyncError") == (rank == 1)
        assert reached == 2


def test_indexes_that_differ_are_refused(volumes):
    """A function that returns something else on each rank would make ranks train on different data."""
    for message, reached in run_ranks(failing, 2, volumes.images, 1):
        assert message.startswith("DesyncError")
        assert "of the main rank" in message
        assert reached == 2


def test_one_rank_needs_no_other(volumes):
    """A world of one rank makes the same index."""
    from rankwise.world import World

    alone = CropIndex(volumes.images, shape=SHAPE)
    assert facts(CropIndex(volumes.images, shape=SHAPE, world=World.single())) == facts(alone)


@pytest.mark.parametrize("given", [[], "/nowhere/at/all.zarr"])
def test_errors_without_a_world_are_as_ever(given):
    """Nothing found is an error with its reason."""
    with pytest.raises((ConfigError, DataError)):
        CropIndex(given, shape=SHAPE)
