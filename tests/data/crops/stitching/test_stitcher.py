"""`Stitcher`: what a model says about overlapping tiles becomes one volume on disk."""

import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from rankwise.data.crops import CropIndex, Stitcher, Take
from rankwise.errors import ConfigError, DataError, RankwiseError, StepError
from rankwise.testing import run_ranks
from rankwise.testing.endings import run_endings
from rankwise.world import World

SIZE = (2, 21, 34, 19)  # t, z, y, x; two frames, no size a multiple of a chunk
SHAPE, STRIDE = (8, 12, 10), (5, 7, 6)
FIELDS = {"image": Take(dtype="f32", pad="reflect")}
NAMES = ("t", "z", "y", "x")
QUICK = {"progress": False, "durable": False}  # a flush of many small files takes longer than all the rest
ALONE = {**QUICK, "device": None, "world": World.single()}


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume in frames, on disk and in memory."""
    path = tmp_path_factory.mktemp("stitching") / "volume.zarr"
    values = np.random.default_rng(1).integers(0, 1000, SIZE).astype("u2")
    zarr.create_array(path, data=values, chunks=(1, 4, 6, 5), shards=(1, 8, 12, 10), dimension_names=NAMES)
    return path, values


def tiles(path, **choices):
    return CropIndex(path, shape=SHAPE, **{"stride": STRIDE, "fields": FIELDS, "edges": "shift", **choices})


def stitched(index, output, model, **choices):
    options = {**ALONE, "chunks": (4, 6, 5), "shards": (8, 12, 20)}
    (made,) = Stitcher(index, output, model=model, **{**options, **choices}).run()
    return zarr.open_array(made.path)[...], made


def weights_of(window):
    """The weights of a tile by their documented formulas: a product over the axes."""
    lines = {
        "gaussian": lambda x: np.exp(-((8 * (x - 0.5)) ** 2) / 2),
        "hann": lambda x: np.sin(np.pi * x) ** 2,
        "constant": np.ones_like,
    }
    weights = [lines[window]((np.arange(n) + 0.5) / n) for n in SHAPE]
    return np.einsum("i,j,k->ijk", *weights)


def by_hand(index, values, model, weights, channels):
    """The same in memory, in one go, in double precision: the definition."""
    frame = index.compiled(0).frame
    sums, total = np.zeros((channels, *SIZE)), np.zeros(SIZE)
    padded = np.pad(values.astype("f4"), [(0, 0)] + [(0, n) for n in SHAPE], mode="reflect")
    for start in index.places(np.arange(len(index)), seed=0).starts.tolist():
        box = (start[0], *(slice(s, s + e) for s, e in zip(start[1:], SHAPE, strict=True)))
        said = np.asarray(model(padded[box][None]))[0].reshape(channels, *SHAPE)
        inside = tuple(slice(0, max(0, min(e, n - s))) for s, e, n in zip(start[1:], SHAPE, SIZE[1:], strict=True))
        place = (start[0], *(slice(s, min(s + e, n)) for s, e, n in zip(start[1:], SHAPE, SIZE[1:], strict=True)))
        sums[(slice(None), *place)] += (said * weights)[(slice(None), *inside)]
        total[place] += weights[inside]
    assert frame.axes == NAMES
    return sums / total


def shifted(image):
    """Says something that depends on where in its tile an element lies, so that weights and places matter."""
    place = sum(np.arange(n).reshape([-1 if axis == own else 1 for axis in range(3)]) for own, n in enumerate(SHAPE))
    return image * 0.5 + place


def two(image):
    return np.stack([shifted(image), -image], axis=1)


@pytest.mark.parametrize(
    ("window", "edges"),
    [
        ("gaussian", "shift"),
        ("hann", "pad"),
        ("constant", "shift"),
        pytest.param("gaussian", "pad", marks=pytest.mark.slow),
        pytest.param("hann", "shift", marks=pytest.mark.slow),
        pytest.param("constant", "pad", marks=pytest.mark.slow),
    ],
)
def test_every_element_is_the_weighted_mean_of_its_tiles(volume, tmp_path, window, edges):
    """Equal to the sum over all tiles in memory, frame by frame, whatever the window, for one number or several."""
    path, values = volume
    index = tiles(path, edges=edges)
    weights = weights_of(window)
    for model, channels in ((shifted, None), (two, 2)):
        found, made = stitched(index, tmp_path / f"o{channels}", model, window=window, channels=channels)
        expected = by_hand(index, values, model, weights, channels or 1)
        expected = expected[0] if channels is None else np.moveaxis(expected, 0, 1)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-3)
        assert made.num_made == made.num_slabs
        assert zarr.open_array(made.path).metadata.dimension_names == (
            ("t", "z", "y", "x") if channels is None else ("t", "c", "z", "y", "x")
        )
    assert not list(tmp_path.glob("*.partial"))


def test_a_window_of_ones_own(volume, tmp_path):
    """Weights may be any array of the tile's shape, all above 0."""
    path, values = volume
    weights = np.random.default_rng(5).random(SHAPE) + 0.1
    found, _ = stitched(tiles(path), tmp_path / "out", shifted, window=weights)
    np.testing.assert_allclose(found, by_hand(tiles(path), values, shifted, weights, 1)[0], rtol=2e-5, atol=2e-3)
    for wrong in (np.zeros(SHAPE), np.ones((3, 3, 3)), "triangle"):
        with pytest.raises(ConfigError, match="window"):
            stitched(tiles(path), tmp_path / "other", shifted, window=wrong)


def test_what_is_made_of_the_means_is_stored(volume, tmp_path):
    """`finish` turns means into classes, in their own dtype, slab by slab."""
    path, values = volume
    means = by_hand(tiles(path), values, two, weights_of("gaussian"), 2)
    found, made = stitched(tiles(path), tmp_path / "a", two, channels=2, finish=lambda m: m.argmax(0).astype("u1"))
    assert (found.dtype, made.dtype) == (np.uint8, np.uint8)
    np.testing.assert_array_equal(found, means.argmax(0))


@pytest.mark.parametrize("fill", [-1, float("nan"), np.float32(-2)])
def test_places_without_a_tile_are_filled(volume, tmp_path, fill):
    """With a mask the places that no tile meets hold the fill value; the others are as ever. Again it is recognised."""
    path, _ = volume
    chosen = np.zeros((1, 1, 4), bool)
    chosen[..., 0] = True
    given = tiles(path, mask=lambda _: chosen), tmp_path / "out", lambda image: image * 0 + 7
    found, _ = stitched(*given, fill=fill)
    seen = np.abs(found - 7) < 1e-5
    np.testing.assert_array_equal(found[~seen], np.float32(fill))
    assert seen[..., :9].all()
    assert not seen[..., -3:].any()
    assert stitched(*given, fill=fill)[1].num_made == 0


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def convolving():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv3d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv3d(4, 2, 3, padding=1)
    )


def on_ranks(world, path, output):
    model = convolving().train()
    if world.world_size == 2:  # a wrapper's own collectives would not meet: ranks run unequal numbers of batches
        model = torch.nn.parallel.DistributedDataParallel(model)
    stitcher = Stitcher(
        tiles(path),
        output,
        model=model,
        predict=lambda model, batch: model(batch["image"].unsqueeze(1) / 1000),
        channels=2,
        chunks=(4, 6, 5),
        **QUICK,
        world=world,
    )
    (made,) = stitcher.run()
    assert model.training
    return made.num_made, made.num_slabs


def test_any_number_of_ranks_writes_the_same_bits(volume, tmp_path):
    """1, 2 and 3 ranks: equal files, each slab made by one rank, all ranks at work; equal to the sum by hand."""
    path, values = volume
    for ranks in (1, 2, 3):
        found = run_ranks(on_ranks, ranks, str(path), str(tmp_path / f"on{ranks}"), timeout=300)
        assert sum(made for made, _ in found) == found[0][1]
        assert min(made for made, _ in found) > 0
    one = files_of(tmp_path / "on1")
    assert len(one) > 50
    assert one == files_of(tmp_path / "on2") == files_of(tmp_path / "on3")
    model = convolving().eval()
    expected = by_hand(
        tiles(path),
        values,
        lambda x: model(torch.as_tensor(x)[None] / 1000).detach(),
        weights_of("gaussian"),
        2,
    )
    found = zarr.open_array(tmp_path / "on1")[...]
    np.testing.assert_allclose(found, np.moveaxis(expected, 0, 1), atol=1e-5)


IMPORTS = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from test_stitcher import QUICK, shifted, tiles
from rankwise.data.crops import Stitcher
from rankwise.world import World
"""
SCRIPT = """
print(*os.listdir({killed!r}), flush=True)
os.chdir({killed!r})
calls = 0
def model(image):
    global calls
    calls += 1
    if calls == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
    return shifted(image)

index = tiles({path!r})
Stitcher(index, "out", model=lambda image: model(image), chunks=(4, 6, 5), batch_size=2, **QUICK, device=None,
         world=World.single()).run()
print(calls)
"""


def test_a_kill_costs_what_was_under_way(volume, tmp_path):
    """Killed twice with SIGKILL, the third start runs only what is missing; the bytes are those of an unkilled run."""
    killed = tmp_path / "killed"
    killed.mkdir()
    calls = []
    stitched(
        tiles(volume[0]), tmp_path / "alone", lambda image: calls.append(0) or shifted(image), shards=None, batch_size=2
    )
    lasts = (int(0.6 * len(calls)), int(0.35 * len(calls)), 0)
    scripts = [SCRIPT.format(killed=str(killed), path=str(volume[0]), last=last) for last in lasts]
    dones = run_endings(IMPORTS.format(folder=str(Path(__file__).parent)), scripts)
    assert [done.returncode for done in dones] == [-signal.SIGKILL, -signal.SIGKILL, 0], dones[-1].stderr
    # what the next one finds: never half of it in its place
    found, later, (partial, num_calls) = (done.stdout.split() for done in dones)
    assert (found, later, partial) == ([], ["out.partial"], "out.partial")
    assert 0 < int(num_calls) < 0.5 * len(calls)
    assert [path.name for path in killed.iterdir()] == ["out"]
    one, other = (zarr.open_array(path) for path in (tmp_path / "alone", killed / "out"))
    assert one.chunks == other.chunks
    assert one[...].tobytes() == other[...].tobytes()


def going_on(world, path, output, fails):
    calls = 0

    def model(image):
        nonlocal calls
        calls += 1
        if world.rank == fails and calls == 4:
            raise ValueError("no more")
        return shifted(image)

    stitcher = Stitcher(
        tiles(path), output, model=model, chunks=(4, 6, 5), batch_size=2, **QUICK, device=None, world=world
    )
    try:
        stitcher.run()
    except (ValueError, RankwiseError) as error:
        return calls, str(error)
    return calls, ""


def test_a_failing_rank_stops_all_and_another_number_of_ranks_goes_on(volume, tmp_path):
    """The other rank stops soon and names the failed one; what was finished is not run again; the bits are equal."""
    output = str(tmp_path / "out")
    first = run_ranks(going_on, 2, str(volume[0]), output, 1, timeout=300)
    assert first[1][1] == "no more"
    assert "no more" in first[0][1] or "another rank failed" in first[0][1]
    alone = run_ranks(going_on, 1, str(volume[0]), str(tmp_path / "alone"), None, timeout=300)[0][0]
    later = run_ranks(going_on, 3, str(volume[0]), output, None, timeout=300)
    assert [said for _, said in later] == [""] * 3
    assert 0 < sum(calls for calls, _ in later) < 2 * alone
    assert files_of(tmp_path / "out") == files_of(tmp_path / "alone")


def test_a_result_of_something_else_is_not_taken_for_this_one(volume, tmp_path):
    """Other weights, window or tag at the same output are refused with what differs; `overwrite=True` replaces it."""
    index, output = tiles(volume[0]), tmp_path / "out"
    options = {"predict": lambda model, batch: model(torch.from_numpy(batch["image"])[:, None])[:, 0], "device": None}
    model = torch.nn.Conv3d(1, 1, 1)
    before, _ = stitched(index, output, model, **options)
    again, made = stitched(index, output, model, **options)
    assert made.num_made == 0
    np.testing.assert_array_equal(before, again)
    with torch.no_grad():
        model.weight += 1
    with pytest.raises(DataError, match=r"holds a different result .*model: .*overwrite=True"):
        stitched(index, output, model, **options)
    with pytest.raises(DataError, match="tag: '', here 'b'"):
        stitched(index, output, model, tag="b", **options)
    after, made = stitched(index, output, model, overwrite=True, **options)
    assert made.num_made == made.num_slabs
    assert (after != before).any()
    (tmp_path / "foreign").mkdir()
    with pytest.raises(DataError, match="it was not stitched"):
        stitched(index, tmp_path / "foreign", model, **options)


def test_the_volume_is_never_in_memory(tmp_path):
    """Peak memory is that of a few layers, not of the volume: a volume four times as long takes no more."""
    peaks = []
    for length in (160, 640):
        path = tmp_path / f"v{length}"
        zarr.create_array(path, data=np.full((length, 64, 64), 3, "u1"), chunks=(16, 64, 64))
        index = CropIndex(path, shape=(16, 32, 32), stride=(8, 32, 32), fields={"image": Take(dtype="f4")})
        stitcher = Stitcher(
            index,
            tmp_path / f"o{length}",
            model=lambda x: x,
            **QUICK,
            device=None,
            world=World.single(),
            cache=0,
        )
        assert stitcher.window_bytes == 31 * 64 * 64 * 2 * 4
        tracemalloc.start()
        stitcher.run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        array = zarr.open_array(tmp_path / f"o{length}")
        np.testing.assert_allclose(array[::97], 3, rtol=1e-6)
    # the first run also loads, and may compile, what reads
    assert peaks[1] < 8 << 20 < length * 64 * 64 * 4


def test_several_images_have_an_output_each(volume, tmp_path):
    """Ranks share the slabs of all images; each has an array of its own shape."""
    small = np.random.default_rng(2).integers(0, 99, (1, 9, 13, 30)).astype("u2")
    zarr.create_array(tmp_path / "small.zarr", data=small, chunks=(1, 4, 6, 5), dimension_names=NAMES)
    index = CropIndex([volume[0], tmp_path / "small.zarr"], shape=SHAPE, stride=STRIDE, fields=FIELDS)
    with pytest.raises(ConfigError, match="the index has 2 images: pass output= as a function"):
        Stitcher(index, tmp_path / "out", model=lambda x: x)
    made = Stitcher(
        index, lambda image: tmp_path / f"of_{image.name}", model=lambda x: x, **QUICK, device=None,
        world=World.single(),
    ).run()  # fmt: skip
    for volume_made, values in zip(made, (volume[1], small), strict=True):
        np.testing.assert_allclose(zarr.open_array(volume_made.path)[...], values, rtol=1e-5)


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"model": lambda x: x[:, 0]}, StepError, r"float32\[4, 12, 10\] for 4 tiles .* shape \[4, 8, 12, 10\]"),
        ({"model": lambda x: x, "channels": 3}, StepError, r"needs real numbers of shape \[4, 3, 8, 12, 10\]"),
        ({"model": lambda x: x / 0 * 0}, StepError, r"not finite for the tile at \[0, 0, 0, 0\]"),
        ({"dtype": "u1"}, ConfigError, "dtype=uint8 needs finish="),
        ({"finish": lambda m: m[:1, :1, :1]}, ConfigError, "finish= gets the means"),
        ({"finish": lambda m: m, "dtype": "i4"}, ConfigError, "convert inside finish="),
        ({"finish": lambda m: m > 1, "fill": 2}, ConfigError, "fill= must be a number that bool holds, got 2"),
        ({"finish": lambda m: m.astype("u1"), "fill": -1}, ConfigError, "a number that uint8 holds, got -1"),
        ({"finish": lambda m: m.astype("u1"), "fill": np.nan}, ConfigError, "a number that uint8 holds, got nan"),
        ({"model": 3}, ConfigError, "a torch module or a function, got int"),
        ({"batch_size": 0}, ConfigError, "batch_size must be an integer of at least 1"),
        ({"batch_size": 2.0}, ConfigError, "batch_size must be an integer of at least 1"),
        ({"chunks": (4, 6)}, ConfigError, "chunks= needs an extent"),
        ({"chunks": (4, 6, 5), "shards": (4, 9, 5)}, ConfigError, "must be multiples of chunks"),
        ({"max_host_memory_bytes": 1000}, ConfigError, "sums of unfinished tiles"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(volume, tmp_path, choices, error, message):
    """What the model returns and what is asked for are checked, with what was wanted and what came."""
    options = {"model": lambda x: x, **ALONE}
    with np.errstate(all="ignore"), pytest.raises(error, match=message):
        Stitcher(tiles(volume[0]), tmp_path / "out", **{**options, **choices}).run()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"stride": (5, 13, 6)}, r"do not cover image .* along axis y"),
        ({"edges": "drop"}, r"do not cover image .* along axis"),
        ({"stride": None, "num_random": 9}, "remove num_random="),
    ],
)
def test_tiles_that_leave_places_out_are_refused(volume, tmp_path, choices, message):
    """A hole in the result is wanted with a mask only."""
    index = tiles(volume[0], **choices)
    with pytest.raises(ConfigError, match=message):
        Stitcher(index, tmp_path / "out", model=lambda x: x)
