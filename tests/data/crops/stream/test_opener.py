"""`Openings`: arrays opened ahead, each once."""

import json
import threading
from pathlib import Path

import pytest
import zarr

import rankwise.data.crops as damacy
from rankwise.data.crops import LatencyModel
from rankwise.data.crops.stream import resolver
from rankwise.data.crops.stream.resolver import Openings
from rankwise.errors import DataError


def config(**values):
    return damacy.Config(samples_per_batch=1, sample_shape=(1,), lookahead_samples=1, **values)


@pytest.fixture
def openings(monkeypatch):
    """Openings of a configuration, with another function that opens."""

    def made(opener, **values):
        monkeypatch.setattr(resolver, "open_image", lambda uri, **_options: opener(uri))
        return Openings(config(**values))

    return made


def test_an_array_is_opened_once(openings):
    """However many samples want it, and however many at the same time."""
    started, go, opened = threading.Event(), threading.Event(), []

    def slow(uri):
        started.set()
        go.wait(30)
        opened.append(uri)
        return uri.upper()

    o = openings(slow)
    futures = [o.start("a") for _ in range(5)]
    started.wait(30)
    assert o.stats.active == 1
    go.set()
    assert {future.result() for future in futures} == {"A"}
    assert o.get("a", 0) == "A"
    assert opened == ["a"]
    assert (o.stats.misses, o.stats.hits, o.stats.max_active) == (1, 5, 1)
    o.close()


def test_the_last_ones_are_kept(openings):
    """Least recently used arrays go first."""
    opened = []
    o = openings(opened.append, n_array_meta_cache=2)
    for uri in "abacab":
        o.get(uri, 0)
    assert opened == ["a", "b", "c", "b"]
    o.close()


def test_what_failed_is_tried_again(openings):
    """A failure is not kept: the next sample may find the array there."""
    calls = []

    def opener(uri):
        calls.append(uri)
        if len(calls) == 1:
            raise OSError(5, "input/output error")
        return "opened"

    o = openings(opener)
    with pytest.raises(damacy.StorageError, match="sample 3 cannot be read: a could not be opened") as caught:
        o.get("a", 3)
    assert (caught.value.uri, caught.value.sample) == ("a", 3)
    assert o.get("a", 4) == "opened"
    o.close()


def test_a_closed_one_opens_nothing_and_delays_end(openings):
    """Closing ends injected delays, and whoever waits for an array hears that the pipeline was closed."""
    o = openings(
        lambda uri: uri, metadata_latency=LatencyModel(baseline_ns=3600e9, cap_ns=3600e9), metadata_io_concurrency=1
    )
    waiting = [o.start("a"), o.start("b")]
    o.close()
    assert waiting[0].result(30) == "a"
    assert waiting[1].cancelled()
    with pytest.raises(damacy.ShutdownError):
        o.get("c", 0)


def failing(path):
    o = Openings(config())
    try:
        with pytest.raises(damacy.DamacyError) as caught:
            o.get(str(path), 7)
    finally:
        o.close()
    return caught.value


def test_what_is_wrong_is_told_apart(tmp_path):
    """Nothing there, something else there, damaged metadata: three errors, each with URI and sample."""
    zarr.create_group(str(tmp_path / "group"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "arr')
    for name, kind in (
        ("nothing", damacy.NotFound),
        ("group", damacy.InvalidSample),
        ("damaged", damacy.DecodeError),
    ):
        error = failing(tmp_path / name)
        assert type(error) is kind
        assert (error.uri, error.sample) == (str(tmp_path / name), 7)
        assert isinstance(error.__cause__, DataError)


def test_an_image_with_a_lost_level_is_damage(tmp_path):
    """An image whose level is not there is no missing array: the image is damaged."""
    group = zarr.create_group(str(tmp_path / "image"))
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [{"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}],
    }
    assert json.loads(Path(tmp_path / "image" / "zarr.json").read_text())["attributes"]["ome"]
    assert isinstance(failing(tmp_path / "image"), damacy.DecodeError)
