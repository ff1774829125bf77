"""`CropIndex`: tiles and random crops by number."""

import sys
import tracemalloc

import numpy as np
import pytest
import zarr

from rankwise.data.crops import CropIndex, Foreground, Mask, Stage, Take, plain_level
from rankwise.data.store import read_meta
from rankwise.errors import ConfigError


def boxes(index, places, extent):
    return [tuple(slice(a, a + e) for a, e in zip(start, extent, strict=True)) for start in places.starts.tolist()]


def held(index, volumes, part, *, seed=1, epoch=0, extent=(8, 8, 8)):
    """Whether each crop of an epoch holds anything but 0 of a part."""
    places = index.places(np.arange(len(index)), seed=seed, epoch=epoch)
    cut = zip(places.images.tolist(), boxes(index, places, extent), strict=True)
    return np.array([volumes.value(index.images[image], part)[box].any() for image, box in cut])


def test_random_crops_are_uniform(tmp_path):
    """Every start is equally likely, alone and in neighbourhoods: chi-square over the starts of a small array."""
    zarr.create_array(tmp_path / "a", shape=(9, 12), dtype="u1", chunks=(3, 4))
    for neighbourhood in (1, 4):
        # more crops of one neighbourhood depend on each other, so one of each is counted
        num = 40_000 * neighbourhood
        index = CropIndex(tmp_path / "a", shape=(4, 5), num_random=num, neighbourhood=neighbourhood)
        starts = index.places(np.arange(0, num, neighbourhood), seed=3).starts
        assert starts.min() == 0
        counts = np.bincount(np.ravel_multi_index(tuple(starts.T), (6, 8)), minlength=48)
        expected = 40_000 / 48
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert abs(statistic - 47) < 5 * np.sqrt(2 * 47)


def test_draws_are_functions_of_seed_epoch_and_number(volumes):
    """The same key draws the same crop in any company; another seed or epoch draws others, unless told not to."""
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=500, neighbourhood=3)
    every = index.places(np.arange(500), seed=7, epoch=2)
    some = np.array([499, 3, 3, 100])
    np.testing.assert_array_equal(index.places(some, seed=7, epoch=2).starts, every.starts[some])
    for seed, epoch in ((8, 2), (7, 3)):
        assert (index.places(np.arange(500), seed=seed, epoch=epoch).starts != every.starts).any()
    fixed = CropIndex(volumes.images, shape=(8, 8, 8), num_random=50, redraw=False)
    first, later = (fixed.places(np.arange(50), seed=7, epoch=epoch).starts for epoch in (0, 5))
    np.testing.assert_array_equal(first, later)


@pytest.mark.parametrize("fraction", [0.0, 0.33, 1.0])
def test_the_foreground_fraction_is_honoured(volumes, fraction):
    """So many crops are drawn around labelled elements; the others meet some by chance, as without a foreground."""
    plain = CropIndex(volumes.images, shape=(8, 8, 8), num_random=3000)
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=3000, foreground=("label", fraction))
    chance = held(plain, volumes, "label").mean()
    expected = fraction + (1 - fraction) * chance
    assert abs(held(index, volumes, "label").mean() - expected) < 0.025


def test_only_wanted_classes_are_foreground(volumes):
    """Classes that are named count, others do not: all crops come from the volume that holds the class."""
    for classes in ((2,), [2], np.array([2])):
        wanted = Foreground("label", 1.0, classes=classes)
        index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=60, foreground=wanted)
        assert set(index.places(np.arange(60), seed=0).images.tolist()) == {1}
    with pytest.raises(ConfigError, match="nothing is labelled"):
        CropIndex(volumes.images, shape=(8, 8, 8), num_random=9, foreground=Foreground("label", 1.0, classes=(9,)))


def test_small_objects_of_a_strided_pyramid_are_foreground(strided):
    """Labels are looked at where nothing is lost: of 200 small objects crops are drawn around each."""
    image, label = strided
    index = CropIndex(image, shape=(32, 32, 32), num_random=3000, foreground=("label", 1.0))
    places = index.places(np.arange(3000), seed=1)
    found = [np.unique(label[box]) for box in boxes(index, places, (32, 32, 32))]
    assert all(held.max() > 0 for held in found)
    assert set(np.concatenate(found).tolist()) - {0} == set(range(1, 201))
    coarse = CropIndex(image, shape=(32, 32, 32), num_random=9, foreground=Foreground("label", 1.0, level=-1))
    counts = [made.compiled(0).placement.foreground.counts.sum() for made in (coarse, index)]
    assert counts[0] < counts[1] / 3  # what one gets who asks for it


def crops_with_labels(tmp_path, labels, *, width=1, size=64, **options):
    """Return which of 400 foreground crops hold a label; an element of the labels is `width` of the image's."""
    zarr.create_array(tmp_path / "image", shape=(size, size), dtype="u2", chunks=(16, 16), overwrite=True)
    label = np.zeros((-(-size // width),) * 2, "u1")
    label[tuple(np.transpose(labels))] = 1
    zarr.create_array(tmp_path / "label", data=label, chunks=label.shape, overwrite=True)
    level = plain_level(read_meta(tmp_path / "label"), spacing=(float(width),) * 2)
    images = [{"image": tmp_path / "image", "label": [level]}]
    index = CropIndex(images, fields=["image", "label"], num_random=400, foreground=("label", 1.0), **options)
    places, layout = index.places(np.arange(400), seed=0), index.compiled(0).layouts["label"]
    places.starts[:] = layout.starts(places.images, places.starts)
    return np.array([label[box].any() for box in boxes(index, places, layout.shape)])


@pytest.mark.parametrize(("width", "shape"), [(2, 2), (2, 4), (3, 4), (4, 4), (4, 5), (4, 8), (8, 9), (8, 24)])
def test_a_foreground_crop_holds_its_label(tmp_path, width, shape):
    """Also where labels are coarser than the image, and a box of them has one or two elements."""
    for snap in {False, shape % width == 0}:
        labels = [(5, 7), (6, 3), (0, 0), (7, 7)]
        assert crops_with_labels(tmp_path, labels, width=width, shape=(shape, shape), snap=snap).all()


@pytest.mark.parametrize("size", [60, 64])
def test_aligned_foreground_crops_hold_their_label(tmp_path, size, monkeypatch):
    """With crops of a chunk every label is reached; with shorter ones some are left out; the main rank says so."""
    corners = [(15, 15), (16, 16), (31, 0), (size - 1, size - 1)]
    assert crops_with_labels(tmp_path, corners, size=size, shape=(16, 16), align="chunk").all()
    said = r"2 of 4 labelled places lie in no crop: crops of \[8, 8\] begin \[16, 16\] apart"
    with pytest.warns(UserWarning, match=said):
        held = crops_with_labels(tmp_path, corners, size=size, shape=(8, 8), align="chunk")
    assert held.all()
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in (launched | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "torch", None)  # who speaks is known without it
    assert crops_with_labels(tmp_path, corners, size=size, shape=(8, 8), align="chunk").all()  # a warning is an error


def test_missing_labels_name_the_level_that_was_looked_at(strided):
    """Who looks for a label that is not there learns in which array, at which level, it was looked for."""
    image, _ = strided
    for level in (0, 2):
        wanted = Foreground("label", 1.0, classes=(999,), level=level)
        with pytest.raises(ConfigError, match=rf"Level {level} of the labels was read \(.*l{2**level}\)"):
            CropIndex(image, shape=(32, 32, 32), num_random=9, foreground=wanted)


def test_maps_are_read_once_and_kept_on_disk(volumes, tmp_path):
    """A later process finds the maps of labels in the folder; labels that were written to are read again."""
    path = tmp_path / "l.zarr"
    array = zarr.create_array(path, data=volumes.values["image0.zarr"]["label"], chunks=(4, 8, 8))
    image = {"image": volumes.images[0]["image"], "label": path}
    options = {"shape": (8, 8, 8), "num_random": 40, "foreground": ("label", 1.0), "maps": tmp_path / "maps"}
    first, second = CropIndex(image, **options), CropIndex(image, **options)
    assert (first._finder.num_read, second._finder.num_read) == (1, 0)
    assert first.fingerprint == second.fingerprint
    half = CropIndex(image, **options | {"foreground": ("label", 0.5)})
    assert half.fingerprint != first.fingerprint
    array[12:16] = 1
    third = CropIndex(image, **options)
    assert third._finder.num_read == 1
    assert third.fingerprint != first.fingerprint


def test_a_mask_says_where_crops_lie(volumes):
    """Random crops have their centre in the mask; tiles lie in it with some part, or with the share asked for."""

    def left(image):
        chosen = np.zeros((1, 1, 4), dtype=bool)
        chosen[..., 0] = True
        return chosen

    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=200, mask=left)
    places = index.places(np.arange(200), seed=0)
    sizes = np.array([volumes.value(image).shape[2] for image in index.images])[places.images]
    assert (places.starts[:, 2] + 4 <= np.maximum(sizes / 4, 4) + 0.5).all()
    tiles = CropIndex(volumes.images, shape=(8, 8, 8), mask="label", fields=["image", "label"])
    assert held(tiles, volumes, "label").all()
    whole = CropIndex(volumes.images, shape=(8, 8, 8), fields=["image", "label"])
    assert len(tiles) == held(whole, volumes, "label").sum()
    with pytest.raises(ConfigError, match="no crop of"):
        CropIndex(volumes.images, shape=(8, 8, 8), mask=Mask(lambda image: np.zeros((2, 2, 2))))


def test_weights_decide_between_images(volumes):
    """Images are drawn from by their weights; by default all places are equally likely."""

    def shares(**options):
        index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=20_000, **options)
        return np.bincount(index.places(np.arange(20_000), seed=5).images, minlength=3) / 20_000

    places = np.array([np.prod(np.array(v["image"].shape) - 7) for v in volumes.values.values()])
    np.testing.assert_allclose(shares(), places / places.sum(), atol=0.015)
    np.testing.assert_allclose(shares(weights="equal"), [1 / 3] * 3, atol=0.015)
    np.testing.assert_allclose(shares(weights=[1, 0, 3]), [0.25, 0, 0.75], atol=0.015)
    index = CropIndex(volumes.images, shape=(8, 8, 8), num_random=99, weights=np.array([1, 0, 3]))
    assert set(index.of_images([1, 2]).places(np.arange(99), seed=5).images.tolist()) == {1}  # a part has its weights
    with pytest.raises(ConfigError, match=r"is -1\.0: weights must be finite"):
        shares(weights=lambda image: -1)


def test_a_curriculum_changes_epochs(volumes):
    """Stages change shape, foreground and images from their epoch on; the fingerprint knows of them."""
    options = {"shape": (4, 4, 4), "num_random": 64, "foreground": ("label", 1.0)}
    stages = {
        2: Stage(foreground=0.0, where=lambda image: image.name == "image1.zarr"),
        4: Stage(shape=[8, 8, 8]),
    }
    index = CropIndex(volumes.images, curriculum=stages, **options)
    assert index.compiled(1).frame.shape == (4, 4, 4)
    assert set(index.places(np.arange(64), seed=0, epoch=3).images.tolist()) == {1}
    assert index.compiled(9).frame.shape == (8, 8, 8)
    assert index.fingerprint != CropIndex(volumes.images, **options).fingerprint
    changing = CropIndex(
        volumes.images, curriculum=lambda epoch: Stage(where=lambda image: epoch < 2 or "1" in image.name), **options
    )
    assert set(changing.places(np.arange(64), seed=0, epoch=3).images.tolist()) == {1}
    assert len(changing.stages) == 2  # however many functions `where` it made
    with pytest.raises(ConfigError, match="curriculum= is for random crops"):
        CropIndex(volumes.images, shape=(4, 4, 4), curriculum=stages)


@pytest.mark.parametrize("wanted", [[-1], [0, 27]])
def test_places_of_crops_that_are_not_there(volumes, wanted):
    """Numbers out of range are refused: they would give places of other crops, or none."""
    index = CropIndex(volumes.images[1], shape=(8, 8, 8), stride=(4, 4, 4))
    assert len(index.describe([0, 26], seed=0)) == 2
    with pytest.raises(IndexError, match=r"the index has 27 crops, but crops .* are wanted"):
        index.describe(wanted, seed=0)


def test_a_hundred_million_crops_cost_no_list(tmp_path):
    """An index of 10^8 tiles holds a few tables of its images, whatever the number of tiles."""
    zarr.create_array(tmp_path / "a", shape=(10_000, 10_000, 10_000), dtype="u1", chunks=(100, 100, 100))
    tracemalloc.start()
    index = CropIndex(tmp_path / "a", shape=(20, 20, 20))
    found = index.places(np.array([0, 10**7, 12 * 10**7]), seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == 125_000_000
    assert len({tuple(start) for start in found.starts.tolist()}) == 3
    assert peak < 16 << 20


def test_fields_cover_the_same_place_at_other_spacings(volumes, tmp_path):
    """A field of half the resolution is cut at the same place in space; one with a shape lies around the centre."""
    zarr.create_array(tmp_path / "half", data=volumes.values["image1.zarr"]["label"][::2, ::2, ::2], chunks=(4, 4, 4))
    half = plain_level(read_meta(tmp_path / "half"), spacing=(2.0, 2.0, 2.0))
    index = CropIndex(
        {"image": volumes.images[1]["image"], "half": half},
        shape=(4, 4, 4),
        fields={"image": Take(), "half": Take(), "wide": Take("half", shape=(4, 4, 4), pad="fill")},
    )
    made, places = index.compiled(0), index.places(np.arange(len(index)), seed=0)
    assert made.layouts["half"].shape == (2, 2, 2)
    near = made.layouts["half"].boxes(places.images, places.starts).starts
    wide = made.layouts["wide"].boxes(places.images, places.starts).starts
    np.testing.assert_array_equal(near, places.starts // 2)
    np.testing.assert_array_equal(wide, places.starts // 2 - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (40, 40, 40)}, "do not fit into image"),
        ({"weights": "equal"}, "weights= is for random crops"),
        ({"stride": (4, 4, 4), "num_random": 5}, "stride= is for tiles"),
        ({"shape": (8, 8)}, "pass an extent for every axis"),
        ({"foreground": ("label", 1.5), "num_random": 5}, "must be a fraction from 0 to 1"),
        ({"stride": (3, 8, 8), "align": "chunk"}, "needs a stride of whole chunks"),
        ({"fields": {"image": Take(channel="DAPI")}}, "have no channels to choose from"),
        ({"stride": 8}, "stride= has an extent for each axis"),
        ({"shape": (8, 8, 4.5)}, r"an extent of shape= \(elements\) must be an integer, got 4.5"),
        ({"stride": (8, 8, 2.5)}, "an extent of stride= .* must be an integer, got 2.5"),
        ({"shape": "888"}, "an extent of shape= .* must be an integer, got '8'"),
        ({"labels": {"label": lambda image: 1}}, "labels='label' has the name of a field"),
        ({"fields": {"x": Take("image", mask=True)}, "labels": {"x_mask": lambda image: 1}}, "or of its mask"),
        ({"fields": ["depth"]}, "has no part 'depth'; it has 'image', 'label'"),
        ({"where": lambda image: False}, "where= excludes all 3 images"),
    ],
)
def test_what_cannot_work_is_said(volumes, options, message):
    """Choices that do not fit each other or the images are refused when the index is made."""
    with pytest.raises(ConfigError, match=message):
        CropIndex(volumes.images, **{"shape": (8, 8, 8), **options})
