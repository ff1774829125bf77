"""What may be given as images: arrays, OME-Zarr images with labels, plates, catalogues."""

from dataclasses import replace

import numpy as np
import pytest
import zarr

from rankwise.data.crops import CropIndex, Take, plain_level
from rankwise.data.crops.index.inputs import gather_images
from rankwise.data.store import build_catalogue, read_meta
from rankwise.errors import ConfigError


def scales(*factors):
    return [
        {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [1.0, f, f]}]}
        for n, f in enumerate(factors)
    ]


def write_image(path, seed):
    """Two levels of a two-channel image, and labels at one level that lie under channel "b"."""
    values = np.random.default_rng(seed).integers(1, 999, (2, 24, 32)).astype("u2")
    group = zarr.create_group(path, zarr_format=3)
    group.create_array("0", data=values, chunks=(1, 8, 8))
    group.create_array("1", data=values[:, ::2, ::2], chunks=(1, 8, 8))
    axes = [{"name": "c", "type": "channel"}, {"name": "y", "type": "space"}, {"name": "x", "type": "space"}]
    described = {
        "version": "0.5",
        "multiscales": [{"axes": axes, "datasets": scales(0.5, 1.0)}],
        "omero": {"channels": [{"label": "a"}, {"label": "b"}]},
    }
    group.attrs["ome"] = described
    labels = group.create_group("labels")
    labels.attrs["ome"] = {"version": "0.5", "labels": ["cells"]}
    cells = labels.create_group("cells")
    cells.create_array("0", data=(values[1] > 500).astype("u1"), chunks=(8, 8))
    sizes = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [0.5, 0.5]}]}]
    cells.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes[1:], "datasets": sizes}]}
    return values


@pytest.fixture(scope="module")
def plate(tmp_path_factory):
    path = tmp_path_factory.mktemp("plates") / "p1.zarr"
    group = zarr.create_group(path, zarr_format=3)
    wells = [{"path": f"A/{c}", "rowIndex": 0, "columnIndex": c - 1} for c in (1, 2)]
    columns = [{"name": "1"}, {"name": "2"}]
    group.attrs["ome"] = {"version": "0.5", "plate": {"rows": [{"name": "A"}], "columns": columns, "wells": wells}}
    values = {}
    for column in (1, 2):
        well = group.create_group(f"A/{column}")
        well.attrs["ome"] = {"version": "0.5", "well": {"images": [{"path": "0"}, {"path": "1"}]}}
        for field in (0, 1):
            name = f"A/{column}/{field}"
            values[f"p1.zarr/{name}"] = write_image(path / name, 10 * column + field)
    return path, values


def test_a_plate_gives_its_fields_with_their_identity(plate):
    """Every field of a plate is an image that knows plate and well; a catalogue, and its file, give the same."""
    path, values = plate
    found = gather_images(path)
    assert [image.name for image in found] == list(values)
    assert {(image.plate, image.well) for image in found} == {("p1.zarr", "A/1"), ("p1.zarr", "A/2")}
    catalogue = build_catalogue([path])
    catalogue.save(path.parent / "plates.idx")
    indexes = [CropIndex(given, shape=(8, 8)) for given in (path, catalogue, path.parent / "plates.idx")]
    assert len({index.fingerprint for index in indexes}) == 1
    assert len(indexes[0]) == 4 * 3 * 4


def test_channels_by_name_and_labels_of_the_image(plate):
    """A channel is chosen by name, in any order, and a label image is cut at the place of the crop, at any level."""
    from rankwise import Order
    from rankwise.data.contract import FieldSpec
    from rankwise.data.crops import IndexPipeline
    from rankwise.world import World

    path, values = plate
    fields = {"one": Take("image", channel="b"), "both": Take("image", channel=["b", "a"]), "cells": Take()}
    index = CropIndex(path, shape=(8, 8), fields=fields)
    assert index.fields["one"] == FieldSpec(shape=(8, 8), dtype=np.dtype("f4"))
    assert index.fields["both"].shape == (2, 8, 8)
    with IndexPipeline(index, order=Order(index, batch_size=9), world=World.single(), device=None) as pipeline:
        for (batch,) in pipeline:
            for row, place in enumerate(pipeline.places(batch)):
                box = tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))
                crop = values[place.image.name][(slice(None), *box)]
                np.testing.assert_array_equal(batch["one"][row], crop[1])
                np.testing.assert_array_equal(batch["both"][row], crop[::-1])
                np.testing.assert_array_equal(batch["cells"][row], crop[1] > 500)
    coarse = CropIndex(path, shape=(4, 4), level=1, fields=["image", "cells"])
    assert coarse.fields["cells"].shape == (8, 8)
    with pytest.raises(ConfigError, match=r"has no channel 'c'; it has 2 channels: 'a', 'b'"):
        CropIndex(path, shape=(8, 8), fields={"image": Take(channel="c")})


def test_channels_of_one_name_are_told_apart_by_number(tmp_path):
    """A name that several channels have chooses none of them, as in `Sample`; a name without a channel is none."""
    zarr.create_array(tmp_path / "x.zarr", shape=(3, 8), chunks=(1, 8), dtype="u1")
    array = read_meta(tmp_path / "x.zarr")
    level = replace(plain_level(array), axes=("c", "x"), channel_axis=0, channels=("dapi", "gfp", "gfp", "rfp"))
    index = CropIndex({"image": level}, shape=(4,), fields={"image": Take(channel=["dapi", 2])})
    assert index.fields["image"].shape == (2, 4)
    with pytest.raises(ConfigError, match=r"the channels \[1, 2\] of .* are all named 'gfp': choose one by its number"):
        CropIndex({"image": level}, shape=(4,), fields={"image": Take(channel="gfp")})
    with pytest.raises(ConfigError, match="has no channel 'rfp'; it has 3 channels"):
        CropIndex({"image": level}, shape=(4,), fields={"image": Take(channel="rfp")})


def test_names_below_a_root(volumes, tmp_path):
    """With root= the path below it is an image's name, so that equal last parts are told apart."""
    for folder in ("s1", "s2"):
        zarr.create_array(tmp_path / folder / "image.zarr", shape=(8,), dtype="u1", chunks=(4,))
    uris = [tmp_path / folder / "image.zarr" for folder in ("s1", "s2")]
    assert [image.name for image in gather_images(uris)] == ["image.zarr", "image.zarr"]
    assert [image.name for image in gather_images(uris, root=str(tmp_path))] == ["s1/image.zarr", "s2/image.zarr"]
    with pytest.raises(ConfigError, match="is not below root="):
        gather_images(uris, root=str(tmp_path / "s1"))


@pytest.mark.parametrize(
    ("given", "message"), [([], "at least one image, got none"), (7, "got a int"), ({}, "got none")]
)
def test_what_is_no_image_is_refused(given, message):
    """Nothing, or something else, is named with what was wanted."""
    with pytest.raises(ConfigError, match=message):
        gather_images(given)


@pytest.mark.parametrize("shape", [(24, 32), (2, 24, 32)])
def test_an_array_beside_an_image_of_its_shape_is_where_the_image_is(tmp_path, shape):
    """A label written as a plain array has no spacing: beside an OME-Zarr image it covers what the image covers."""
    write_image(tmp_path / "image", 5)
    labels = np.random.default_rng(0).integers(0, 9, shape).astype("u1")
    zarr.create_array(tmp_path / "label", data=labels, chunks=shape, dimension_names=["c", "y", "x"][-len(shape) :])
    parts = {"image": tmp_path / "image", "label": tmp_path / "label"}
    for level, step in ((0, 1), (1, 2)):
        index = CropIndex(
            parts, shape=(4, 6), level=level, fields={"image": Take(pad="fill"), "label": Take(pad="fill")}
        )
        layout = index.compiled(0).layouts["label"]
        assert layout.shape[-2:] == (4 * step, 6 * step)
        places = index.places(np.arange(len(index)), seed=0)
        # the second level was made by striding, and says that its first element lies on the first one of the finest
        offset = 0 if step == 1 else -0.5
        wanted = np.floor(places.starts * step + offset + 0.5)
        np.testing.assert_array_equal(layout.starts(places.images, places.starts)[:, -2:], wanted)
    other = plain_level(read_meta(tmp_path / "label"), spacing=(2.0,) * len(shape))
    placed = CropIndex(
        parts | {"label": other}, shape=(4, 6), fields={"image": Take(pad="fill"), "label": Take(pad="fill")}
    )
    assert placed.fields["label"].shape[-2:] == (1, 2)  # what is said counts
