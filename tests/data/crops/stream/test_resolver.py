"""From samples to boxes: images with levels and channels, plain arrays, shapes with axes of extent 1."""

import numpy as np
import pytest
import zarr

import rankwise.data.crops as damacy


@pytest.fixture
def image(tmp_path):
    """A two-level image with named channels and a label image."""
    rng = np.random.default_rng(3)
    group = zarr.create_group(str(tmp_path / "plate" / "image"))
    values = {0: rng.integers(0, 900, (3, 8, 32, 32)).astype("u2")}
    values[1] = values[0][:, :, ::2, ::2]
    for level, array in values.items():
        group.create_array(str(level), data=array, chunks=(1, 4, 16, 16))
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space", "unit": "micrometer"} for n in "zyx")]
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [
            {
                "axes": axes,
                "datasets": [
                    {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 2.0**n, 2.0**n]}]}
                    for n in values
                ],
            }
        ],
        "omero": {"channels": [{"label": name} for name in ("DAPI", "GFP", "RFP")]},
    }
    return str(tmp_path / "plate" / "image"), values


def crops(samples, shape, **values):
    config = damacy.Config(
        samples_per_batch=len(samples), sample_shape=shape, dtype="native", device="numpy", pop_timeout_s=60, **values
    )
    with damacy.Pipeline(config) as p:
        p.push(iter(samples))
        return p.pop()


def test_an_image_has_levels(image):
    """The URI of an image with a level reads that level; 0 is the finest, negative ones count from the coarsest."""
    uri, values = image
    box = ((1, 2), (0, 4), (8, 16), (8, 16))
    samples = [damacy.Sample(uri, box, level=level) for level in (None, 0, 1, -1)]
    batch = crops(samples, (1, 4, 8, 8))
    for row, level in zip(batch["image"], (0, 0, 1, 1), strict=True):
        np.testing.assert_array_equal(row, values[level][1:2, 0:4, 8:16, 8:16])


def test_channels_by_name_and_number(image):
    """One channel drops its axis, several come first, in the order asked for; images and label volumes mix."""
    uri, values = image
    box = ((0, 4), (8, 16), (8, 16))
    one = [damacy.Sample(uri, box, channel=channel) for channel in ("GFP", 1, -2)]
    for row in crops(one, (4, 8, 8))["image"]:
        np.testing.assert_array_equal(row, values[0][1, 0:4, 8:16, 8:16])
    several = [damacy.Sample(uri, box, channel=("RFP", 0), level=1)]
    np.testing.assert_array_equal(crops(several, (2, 4, 8, 8))["image"][0], values[1][[2, 0], 0:4, 8:16, 8:16])


def test_axes_of_extent_one_may_be_left_out(image):
    """A box of a 4-D image fills a 3-D sample, and plain arrays of other axes share its field."""
    uri, values = image
    samples = [
        damacy.Sample(uri, ((2, 3), (0, 4), (8, 16), (8, 16))),
        damacy.Sample(f"{uri}/1", ((0, 1), (0, 4), (0, 8), (0, 8))),
        damacy.Sample(uri, ((0, 4), (0, 8), (0, 8)), channel="DAPI"),
    ]
    batch = crops(samples, (4, 8, 8))
    np.testing.assert_array_equal(batch["image"][0], values[0][2, 0:4, 8:16, 8:16])
    np.testing.assert_array_equal(batch["image"][1], values[1][0, 0:4, 0:8, 0:8])
    np.testing.assert_array_equal(batch["image"][2], values[0][0, 0:4, 0:8, 0:8])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"level": 2}, damacy.InvalidSample, "has 2 levels"),
        ({"channel": "blue"}, damacy.InvalidSample, "'DAPI', 'GFP', 'RFP'"),
        ({"channel": 0, "aabb": ((0, 4), (0, 8), (0, 8), (0, 1))}, damacy.RankMismatch, "has 3 axes"),
        ({"aabb": ((0, 4), (0, 8), (0, 8))}, damacy.RankMismatch, "the array 4"),
    ],
)
def test_what_an_image_does_not_have(image, options, kind, message):
    """Levels and channels that are not there are told with those that are."""
    uri, _ = image
    aabb = options.pop("aabb", ((0, 1), (0, 4), (0, 8), (0, 8)) if "level" in options else ((0, 4), (0, 8), (0, 8)))
    with pytest.raises(kind, match=message) as caught:
        crops([damacy.Sample(uri, aabb, **options)], (4, 8, 8))
    assert caught.value.uri.startswith(uri)


def test_a_plain_array_without_names_has_no_channels(volume):
    """channel= needs to know which axis is meant."""
    with pytest.raises(damacy.InvalidSample, match="no axis of channels"):
        crops([damacy.Sample(volume.uri, ((0, 8), (0, 8)), channel=0)], (8, 8))


def test_scalings_by_array(volume, make):
    """Each array is normalised by its own numbers, as a function of its metadata or by its place."""
    other = make("other", seed=9)
    stats = {v.uri: damacy.Scaling.standard(v.values.mean(), v.values.std()) for v in (volume, other)}
    samples = [volume.sample(0, 0, 0), other.sample(1, 1, 1), volume.sample(3, 3, 3)]
    for normalise in (stats, lambda meta: stats[meta.place]):
        config = damacy.Config(samples_per_batch=3, sample_shape=(4, 8, 8), normalise=normalise, device="numpy")
        with damacy.Pipeline(config) as p:
            p.push(samples)
            batch = p.pop()
        for row, (v, s) in enumerate(zip((volume, other, volume), samples, strict=True)):
            wanted = (v.crop(s) - v.values.mean()) / v.values.std()
            np.testing.assert_allclose(batch["image"][row], wanted, rtol=1e-4, atol=1e-5)
    config = damacy.Config(samples_per_batch=1, sample_shape=(4, 8, 8), normalise={volume.uri: stats[volume.uri]})
    with damacy.Pipeline(config) as p:
        p.push([other.sample(0, 0, 0)])
        with pytest.raises(damacy.InvalidSample, match="needs a Scaling for every array"):
            p.pop()
