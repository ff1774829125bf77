"""`Take`: dtypes by name."""

from dataclasses import replace

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import (
    Config,
    Crop,
    CropIndex,
    Field,
    IndexPipeline,
    InvalidArgument,
    Pipeline,
    Sample,
    Scaling,
    Take,
    plain_level,
)
from rankwise.data.store import read_meta
from rankwise.errors import ConfigError

STORED = np.dtype("u2")


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [
        ("f32", "float32"),
        ("f16", "float16"),
        ("i8", "int8"),
        ("u8", "uint8"),
        ("bf16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("int64", "int64"),
        ("u1", "uint8"),
        ("<f4", "float32"),
        (np.float64, "float64"),
        (np.dtype("i4"), "int32"),
        (bool, "bool"),
        (None, "uint16"),
        ("native", "uint16"),
    ],
)
def test_dtypes_are_those_of_the_configuration(wanted, dtype):
    """The same words mean the same in `Take` and in `Config`; NumPy's own are understood as well."""
    assert (Take(dtype=wanted).fixed_dtype or STORED).name == dtype


@pytest.mark.parametrize("wrong", ["f31", "image"])
def test_other_words_are_refused_at_once(wrong):
    """A word that is no dtype is an error of construction, with those there are."""
    with pytest.raises(ConfigError, match="dtype"):
        Take(dtype=wrong)


def test_an_index_has_the_dtypes_of_a_configuration(tmp_path):
    """The first field is float32 unless said, further ones keep the dtype of their arrays: in both."""
    values = np.arange(64, dtype="u2").reshape(4, 4, 4)
    for name in "ab":
        zarr.create_array(tmp_path / name, data=values, chunks=(4, 4, 4))
    index = CropIndex({"image": tmp_path / "a", "label": tmp_path / "b"}, shape=(4, 4, 4))
    config = Config(samples_per_batch=1, sample_shape=(4, 4, 4), fields={"label": Field(sample_shape=(4, 4, 4))})
    crop = Crop(tmp_path / "b", np.s_[0:4, 0:4, 0:4])
    with IndexPipeline(index, order=Order(index, batch_size=1), device=None) as ordered, Pipeline(config) as pushed:
        pushed.push([Sample(tmp_path / "a", np.s_[0:4, 0:4, 0:4], also={"label": crop})])
        ((theirs,),) = [[batch.detach() for batch in step] for step in ordered]
        own = pushed.pop()
        for field, dtype in (("image", np.float32), ("label", np.uint16)):
            assert np.asarray(own[field]).dtype == theirs[field].dtype == dtype
            np.testing.assert_array_equal(np.asarray(own[field]), theirs[field])
    assert (
        CropIndex(tmp_path / "a", shape=(4, 4, 4), fields={"image": Take(dtype="native")}).fields["image"].dtype == "u2"
    )
    same = [
        CropIndex(tmp_path / "a", shape=(4, 4, 4), fields={"image": Take(dtype=d)}) for d in (None, "f32", np.float32)
    ]
    assert len({index.fingerprint for index in same}) == 1


def test_numbers_of_numpy_give_the_same_index(tmp_path):
    """A state saved with numbers of NumPy is loaded with Python's: the fingerprint depends on values, not on types."""
    zarr.create_array(tmp_path / "a", shape=(16, 16), dtype="u2", chunks=(4, 4))
    paths = {"image": tmp_path / "a", "label": tmp_path / "b"}
    zarr.create_array(tmp_path / "b", data=np.ones((16, 16), dtype="u1"), chunks=(4, 4))

    def made(whole, real):
        takes = {
            "image": Take(normalise=Scaling(real(0.5), real(2)), level=whole(0)),
            "label": Take(shape=(whole(8), whole(8))),
        }
        index = CropIndex(
            paths, fields=takes, shape=(whole(8), whole(8)), num_random=whole(40), neighbourhood=whole(2),
            foreground=("label", real(0.25)),
        )  # fmt: skip
        return index.fingerprint

    assert made(int, float) == made(np.int64, np.float64) == made(np.int32, np.float32)


@pytest.mark.parametrize(
    "wrong", [{"num_random": 4.0}, {"num_random": True}, {"num_random": 4, "neighbourhood": 0}, {"num_random": "4"}]
)
def test_counts_are_whole_numbers(tmp_path, wrong):
    """A number of crops that is no whole number is an error of construction, which names it."""
    zarr.create_array(tmp_path / "a", shape=(16, 16), dtype="u2", chunks=(4, 4))
    with pytest.raises(ConfigError, match=f"{list(wrong)[-1]} must be an integer of at least 1, got"):
        CropIndex(tmp_path / "a", shape=(8, 8), **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"foreground": "label"}, r"foreground= must be \(part, fraction\)"),
        ({"foreground": ("label",)}, r"foreground= must be \(part, fraction\)"),
        ({"foreground": ("label", "0.5")}, "must be a fraction from 0 to 1, got '0.5'"),
        ({"mask": np.ones((16, 16))}, "mask= must be the name of a part .* got a ndarray"),
        ({"num_random": None, "stride": (None, 8)}, "stride needs one step of at least 1"),
        ({"fields": lambda: {"image": Take(shape=(None, 8))}}, "needs extents of at least 1"),
    ],
)
def test_values_of_another_kind_are_refused(tmp_path, wrong, said):
    """What cannot be a foreground, a mask, a stride or a shape says what can; a list is as good as a tuple."""
    zarr.create_array(tmp_path / "a", data=np.ones((16, 16), "u2"), chunks=(4, 4))
    paths, options = {"image": tmp_path / "a", "label": tmp_path / "a"}, {"shape": (8, 8), "num_random": 4}
    with pytest.raises(ConfigError, match=said):
        CropIndex(paths, **options | {name: made() if name == "fields" else made for name, made in wrong.items()})
    given = [CropIndex(paths, **options, foreground=kind(("label", 0.5))) for kind in (list, tuple)]
    assert given[0].fingerprint == given[1].fingerprint


@pytest.mark.parametrize("wrong", [2.0, "standard", (0.5, 1), {"a.zarr": 2.0}, {3: Scaling(2.0)}])
def test_a_wrong_kind_of_normalisation_is_refused_at_once(wrong):
    """What is no scaling, mapping of URIs or function is an error of construction, here and in `Config`."""
    with pytest.raises(ConfigError, match="normalise= must be a Scaling"):
        Take(normalise=wrong)
    with pytest.raises(InvalidArgument, match="field 'image': normalise= must be a Scaling"):
        Config(samples_per_batch=1, sample_shape=(4,), normalise=wrong)


def test_scalings_are_found_by_relative_paths(tmp_path, monkeypatch):
    """URIs in a mapping mean what they mean everywhere: relative paths, paths of groups; and decide the fingerprint."""
    monkeypatch.chdir(tmp_path)
    values = np.arange(64, dtype="u2").reshape(4, 4, 4)
    group = zarr.open_group("g.zarr", mode="w")
    group.create_array("a", data=values, chunks=(4, 4, 4))
    seen = {}
    for uri in ("g.zarr/a", "./g.zarr", tmp_path / "g.zarr" / "a"):
        index = CropIndex("g.zarr/a", shape=(4, 4, 4), fields={"image": Take(normalise={uri: Scaling(0.5, 1.0)})})
        with IndexPipeline(index, order=Order(index, batch_size=1), device=None) as pipeline:
            ((batch,),) = [[batch.detach() for batch in step] for step in pipeline]
        np.testing.assert_array_equal(batch["image"][0], values * np.float32(0.5) + 1)
        seen[str(uri)] = index.fingerprint
    assert len(set(seen.values())) == 1
    other = CropIndex("g.zarr/a", shape=(4, 4, 4), fields={"image": Take(normalise={"g.zarr/a": Scaling(0.25)})})
    assert other.fingerprint not in seen.values()
    with pytest.raises(ConfigError, match=r"needs a Scaling for every array; for .*g.zarr/a it has none"):
        CropIndex("g.zarr/a", shape=(4, 4, 4), fields={"image": Take(normalise={"other.zarr": Scaling(0.5)})})


@pytest.fixture
def halved(tmp_path):
    """An image whose elements are their own place, and a label of half the resolution that says the same."""
    z, y, x = np.ogrid[:20, :31, :24]
    place = (z * 10000 + y * 100 + x).astype("u4")
    zarr.create_array(tmp_path / "image", data=place, chunks=(8, 8, 8))
    half = place[: 20 // 2 * 2 : 2, : 31 // 2 * 2 : 2, : 24 // 2 * 2 : 2]
    zarr.create_array(tmp_path / "half", data=half, chunks=(4, 4, 4))
    label = plain_level(read_meta(tmp_path / "half"), spacing=(2.0, 2.0, 2.0))
    return {"image": tmp_path / "image", "half": label}


@pytest.mark.parametrize(
    "how",
    [
        {"num_random": 300},
        {"num_random": 300, "neighbourhood": 3, "foreground": ("half", 0.5)},
        {"num_random": 300, "pad": "fill", "shape": (22, 8, 8)},
        {"stride": (4, 6, 2), "edges": "pad", "pad": "fill"},
        {"edges": "drop"},
    ],
)
def test_snapped_crops_begin_with_whole_elements_of_all_fields(halved, how):
    """With `snap` image and label begin at the same place; without it every other one is half an element off."""

    def off(**choices):
        index = CropIndex(halved, **{"shape": (4, 8, 8), **how, **choices})
        places = index.places(np.arange(len(index)), seed=4)
        starts = index.compiled(0).layouts["half"].starts(places.images, places.starts)
        return np.abs(2 * starts - places.starts)[(places.starts >= 0).all(axis=1)], index

    snapped, index = off(snap=True)
    assert snapped.size
    assert (snapped == 0).all()
    loose, other = off()
    if index.rules.num_random:
        assert (loose == 1).any()
        assert index.fingerprint != other.fingerprint


def test_snapping_that_cannot_be_is_refused(halved, tmp_path):
    """Odd strides, odd extents, a covering last tile, or a field off the grid: said with what would do."""
    for how, said in (
        ({"stride": (4, 7, 8), "edges": "pad", "pad": "fill"}, "a stride and a shape in steps of 2"),
        ({"stride": (4, 8, 8)}, 'edges="pad" or "drop"'),  # 31 elements: the last tile would begin at 23
        ({"shape": (4, 7, 8), "num_random": 5}, "A shape in steps of 2 may work"),
    ):
        with pytest.raises(ConfigError, match=said):
            CropIndex(halved, **{"shape": (4, 8, 8), "snap": True, **how})
    level = plain_level(read_meta(tmp_path / "image"), spacing=(1.0, 1.0, 1.0))
    moved = {"image": tmp_path / "image", "label": replace(level, origin=(0.5, 0.7, 0.5))}
    with pytest.raises(ConfigError, match="fields on the reference's grid"):
        CropIndex(moved, shape=(4, 8, 8), num_random=5, snap=True, pad="fill")
