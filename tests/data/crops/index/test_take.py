"""`Take`: dtypes by name."""

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import Config, CropIndex, InvalidArgument, Pipeline, Scaling
from rankwise.data.crops.index import Take
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
    ],
)
def test_dtypes_are_those_of_the_configuration(wanted, dtype):
    """The same words mean the same in `Take` and in `Config`; NumPy's own are understood as well."""
    assert Take(dtype=wanted).chosen_dtype(STORED).name == dtype


@pytest.mark.parametrize("wrong", ["f31", "native", "image"])
def test_other_words_are_refused_at_once(wrong):
    """A word that is no dtype is an error of construction, with those there are."""
    with pytest.raises(ConfigError, match="dtype"):
        Take(dtype=wrong)


@pytest.mark.parametrize("wrong", [2.0, "standard", (0.5, 1), {"a.zarr": 2.0}, {3: Scaling(2.0)}])
def test_a_wrong_kind_of_normalisation_is_refused_at_once(wrong):
    """What is no scaling, mapping of URIs or function is an error of construction, here and in `Config`."""
    with pytest.raises(ConfigError, match="normalise= is a Scaling"):
        Take(normalise=wrong)
    with pytest.raises(InvalidArgument, match="field 'image': normalise= is a Scaling"):
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
        with Pipeline(index, order=Order(index, batch_size=1), device=None) as pipeline:
            ((batch,),) = [[batch.detach() for batch in step] for step in pipeline]
        np.testing.assert_array_equal(batch["image"][0], values * np.float32(0.5) + 1)
        seen[str(uri)] = index.fingerprint
    assert len(set(seen.values())) == 1
    other = CropIndex("g.zarr/a", shape=(4, 4, 4), fields={"image": Take(normalise={"g.zarr/a": Scaling(0.25)})})
    assert other.fingerprint not in seen.values()
    with pytest.raises(ConfigError, match=r"wants a Scaling for every array; for .*g.zarr/a it has none"):
        CropIndex("g.zarr/a", shape=(4, 4, 4), fields={"image": Take(normalise={"other.zarr": Scaling(0.5)})})
