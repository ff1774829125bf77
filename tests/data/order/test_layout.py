import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import FieldSpec
from rankwise.data.order.layout import Facts, choose_window
from rankwise.errors import ConfigError
from rankwise.testing.stores.free_plans import FreeSource


def source(**fields):
    return FreeSource(num_samples=1000, chunk_samples=16, fingerprint="f", fields=fields)


def test_a_source_tells_its_grid():
    """A source's chunk bytes are summed over its dense fields; a ragged field makes them unknown."""
    image = FieldSpec(shape=(4, 4), dtype=np.dtype("uint16"))
    label = FieldSpec(shape=(), dtype=np.dtype("int64"))
    facts = Facts.of(source(image=image, label=label))
    assert (facts.num_samples, facts.chunk_bytes, facts.fingerprint) == (1000, 16 * (32 + 8), "f")
    assert facts.locality.chunk_samples == 16
    rows = FieldSpec(shape=(50,), dtype=np.dtype("float32"), ragged=True)
    assert Facts.of(source(image=image, rows=rows)).chunk_bytes is None
    assert Facts.of(source()).chunk_bytes is None
    empty = FreeSource(num_samples=0, chunk_samples=16, fingerprint="f", fields={})
    for samples in (empty, [], 0):
        with pytest.raises(ConfigError, match=r"^an Order needs samples, got 0: .* filter"):
            Facts.of(samples)


def test_numbers_and_sized_things_count():
    """A number, a NumPy number, a list or a dataset with a method of that name: their samples are counted."""
    for samples in (7, np.int64(7), [0] * 7, "seven77"):
        assert Facts.of(samples) == Facts(num_samples=7)

    class Dataset:
        def __len__(self):
            return 5

        def num_samples(self):
            raise AssertionError

    assert Facts.of(Dataset()).num_samples == 5


@pytest.mark.parametrize("samples", [-3, 2.5, None, source, 1 << 61])
def test_no_samples_is_an_error(samples):
    """What cannot be counted is refused."""
    with pytest.raises(ConfigError, match=r"samples of an Order .* must be an integer from 0 to"):
        Facts.of(samples)


def test_lanes_and_window_follow_metadata():
    """Lanes: min(64, batch, chunks). Window: 128 MiB over all lanes, at least 1, at most all chunks, 16 if unknown."""
    for num_samples, batch_size, lanes in ((16_000, 1000, 64), (16_000, 10, 10), (112, 100, 7)):
        assert Order(num_samples, batch_size=batch_size, chunk_samples=16).grid.lanes == lanes
    common = {"lanes": 64, "chunk_samples": 16, "num_chunks": 10_000}
    assert choose_window(chunk_bytes=1 << 20, **common) == 2
    assert choose_window(chunk_bytes=1 << 18, **common) == 8
    assert choose_window(chunk_bytes=1 << 40, **common) == 1
    assert choose_window(chunk_bytes=1, **common) == 10_000
    assert choose_window(chunk_bytes=None, **common) == 16
    assert choose_window(chunk_bytes=None, lanes=64, chunk_samples=1, num_chunks=10_000) == 1


def test_a_source_may_wish_for_lanes_and_window():
    """A source that says its chunk's bytes and what suits it is followed, within what the samples allow."""
    told = source()
    told.chunk_bytes = 1 << 20
    told.layout = lambda batch_size: (batch_size // 8, 1)
    assert Facts.of(told).chunk_bytes == 1 << 20
    order = Order(told, batch_size=64)
    assert (order.grid.lanes, order.grid.window) == (8, 1)
    assert Order(told, batch_size=64, lanes=5, window=3).grid.lanes == 5
    assert Order(told, batch_size=4000).grid.lanes == -(-1000 // 16)
    told.layout = lambda batch_size: (None, None)
    assert Order(told, batch_size=64).grid.lanes == 63
    assert Order(told, batch_size=64, kind="sequential").grid.lanes == 1
