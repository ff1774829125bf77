"""Images: axes, levels, channels, labels."""

import pickle

import pytest
import zarr

from rankwise.data.store import open_image, read_meta
from rankwise.errors import DataError


def test_an_image_has_axes_levels_and_channels(writer, tmp_path):
    """Axes with units, scale and translation of each level, and channels by name, in both versions."""
    writer.image(tmp_path / "i.zarr")
    image = open_image(tmp_path / "i.zarr")
    assert (image.name, image.version) == ("cells", "0.5" if writer.zarr_format == 3 else "")
    axis = image.axes[1]
    assert (axis.name, axis.type, axis.unit) == ("z", "space", "micrometer")
    assert [level.array.shape for level in image.levels] == [(2, 8, 16, 16), (2, 4, 8, 8)]
    assert [level.scale for level in image.levels] == [(1.0, 2.0, 0.5, 0.25), (1.0, 4.0, 1.0, 0.5)]
    assert [level.translation for level in image.levels] == [(0.0, 0.0, 0.0, 0.0), (0.0, 1.0, 1.0, 1.0)]
    assert (image.channel("gfp"), image.channel(-1), image.channel_axis, image.spatial) == (1, 1, 0, (1, 2, 3))
    assert image.levels[0].array == read_meta(tmp_path / "i.zarr" / "0")


def test_transformations_of_the_whole_come_after_those_of_a_level(writer, tmp_path):
    """An element's place is what the dataset's transformations and then the multiscale's say."""
    whole = [{"type": "scale", "scale": [1, 10, 10, 10]}, {"type": "translation", "translation": [0, 5, 5, 5]}]
    writer.image(tmp_path / "i", coordinateTransformations=whole)
    level = open_image(tmp_path / "i").levels[1]
    assert (level.scale, level.translation) == ((1.0, 40.0, 10.0, 5.0), (0.0, 15.0, 15.0, 15.0))


@pytest.mark.parametrize(
    ("spacing", "level"),
    [(0.1, 0), (2.0, 0), (3.9, 0), (4.0, 1), (3.999, 1), ((4, 1, 0.5), 1), ((4, 1, 0.4), 0), ({"z": 4}, 1)],
)
def test_the_coarsest_level_that_is_fine_enough(writer, tmp_path, spacing, level):
    """`level_for` takes no finer level than needed, and the finest when none is fine enough."""
    writer.image(tmp_path / "i")
    assert open_image(tmp_path / "i").level_for(spacing) == level


def test_a_spacing_that_does_not_fit_is_refused(writer, tmp_path):
    """A wrong number of values, an unknown axis or zero name the axes there are."""
    writer.image(tmp_path / "i")
    image = open_image(tmp_path / "i")
    with pytest.raises(DataError, match=r"3 axes of space \(z, y, x\)"):
        image.level_for((1, 1))
    with pytest.raises(DataError, match="no axis 'q'; its axes are c, z, y, x"):
        image.level_for({"q": 1})
    with pytest.raises(DataError, match="above 0"):
        image.level_for(0)


def test_labels_are_images(writer, tmp_path):
    """A label image is opened by name; a wrong name lists them; an image without labels has none."""
    writer.image(tmp_path / "i", labels=("nuclei", "cells"))
    image = open_image(tmp_path / "i")
    assert image.labels() == ("nuclei", "cells")
    nuclei = image.label("nuclei")
    assert (nuclei.levels[0].array.dtype.name, nuclei.levels[0].scale) == ("int32", (2.0, 0.5, 0.25))
    assert nuclei.labels() == ()
    with pytest.raises(DataError, match="no label image 'nucleus'; its labels are: 'nuclei', 'cells'"):
        image.label("nucleus")


def test_an_unknown_channel_lists_the_known_ones(writer, tmp_path):
    """A wrong name or number says which channels there are; a name that two channels share is no name."""
    writer.image(tmp_path / "i", channels=("dapi", "gfp", "gfp"))
    image = open_image(tmp_path / "i")
    with pytest.raises(DataError, match="3 channels, named 'dapi', 'gfp', 'gfp'; there is no channel 'rfp'"):
        image.channel("rfp")
    with pytest.raises(DataError, match="there is no channel 3"):
        image.channel(3)
    with pytest.raises(DataError, match=r"channels \[1, 2\] are all named 'gfp'"):
        image.channel("gfp")


def test_an_image_travels_to_another_process(writer, tmp_path):
    """A pickled image opens its labels from the store."""
    writer.image(tmp_path / "i", labels=("nuclei",))
    image = open_image(tmp_path / "i")
    copy = pickle.loads(pickle.dumps(image))
    assert copy == image
    assert copy.label("nuclei") == image.label("nuclei")


def test_a_plain_array_is_an_image_of_one_level(tmp_path):
    """An array without OME-Zarr metadata has its dimension names as axes, and spacing 1."""
    zarr.create_array(tmp_path / "a", shape=(4, 6), chunks=(2, 2), dtype="u1", dimension_names=["y", None])
    image = open_image(tmp_path / "a")
    assert [axis.name for axis in image.axes] == ["y", "-1"]
    assert (image.levels[0].scale, image.channels) == ((1.0, 1.0), ())


def test_older_versions_have_relative_scales(tmp_path):
    """Before 0.4 axes are bare names, or tczyx, and scales follow from the shapes."""
    for name, axes in (("v03", {"axes": ["y", "x"]}), ("v02", {})):
        shape = (4, 6) if axes else (1, 1, 1, 4, 6)
        multiscale = {"version": "0.3", "datasets": [{"path": "0"}, {"path": "1"}], **axes}
        zarr.create_group(tmp_path / name, zarr_format=2, attributes={"multiscales": [multiscale]})
        for level in (0, 1):
            small = (*shape[:-2], shape[-2] >> level, shape[-1] >> level)
            zarr.create_array(tmp_path / name / str(level), shape=small, chunks=small, dtype="u1", zarr_format=2)
        image = open_image(tmp_path / name)
        assert image.levels[1].scale[-2:] == (2.0, 2.0)
        assert "".join(axis.name for axis in image.axes) == ("yx" if axes else "tczyx")
        assert len(image.spatial) == (2 if axes else 3)


def damage(key, value):
    def change(ome):
        ome["multiscales"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ome: ome.update(multiscales=[]), "describes 0 images"),
        (lambda ome: ome.update(multiscales=3), "expected list"),
        (lambda ome: ome.update(multiscales=[3]), "expected an object"),
        (lambda ome: ome.pop("multiscales"), "not an OME-Zarr image"),
        (damage("axes", [{"type": "space"}] * 4), "has no 'name'"),
        (damage("axes", [{"name": "x"}] * 4), "expected one name for each"),
        (damage("axes", [{"name": "y"}, {"name": "x"}]), "level '0' .* has 4 axes"),
        (damage("datasets", []), "no levels"),
        (damage("datasets", [{}]), "has no 'path'"),
        (damage("datasets", [{"path": "7"}]), "level '7' .* is missing"),
        (damage("datasets", [{"path": "../i/0"}]), "outside"),
        (damage("coordinateTransformations", [{"type": "affine"}]), "type 'affine'"),
        (damage("coordinateTransformations", [{"type": "scale", "scale": [1, 1]}]), "expected 4 numbers"),
        (damage("coordinateTransformations", [{"type": "scale", "scale": [1, 1, 1, 0]}]), "above 0"),
        (damage("coordinateTransformations", [{"type": "scale", "scale": [1, 1, 1, None]}]), "expected 4 numbers"),
        (damage("coordinateTransformations", [{"type": "scale", "path": "s"}]), "outside the metadata"),
        (damage("coordinateTransformations", {"a": 1}), "expected a list"),
        (lambda ome: ome.update(omero={"channels": [3]}), "omero"),
        (lambda ome: ome.update(omero=3), "'omero'"),
    ],
)
def test_damaged_images_say_where(writer, tmp_path, edit, change, says):
    """A missing or damaged part is an error that names the image and the part."""
    writer.image(tmp_path / "i")
    edit(tmp_path / "i", change)
    with pytest.raises(DataError, match=says) as caught:
        open_image(tmp_path / "i")
    assert str(tmp_path / "i") in str(caught.value)


def test_a_group_that_is_no_image_says_what_it_holds(writer, tmp_path):
    """Opening the wrong group, or reading a group as an array, lists what is there."""
    writer.image(tmp_path / "i")
    writer.group(tmp_path / "g", {})
    writer.array(tmp_path / "g" / "raw", (2, 2))
    writer.image(tmp_path / "g" / "picture", num_levels=1)
    with pytest.raises(DataError, match="holds the arrays 'raw'; the images 'picture'"):
        open_image(tmp_path / "g")
    with pytest.raises(DataError, match="is an OME-Zarr image with the levels '0', '1'"):
        read_meta(tmp_path / "i")
