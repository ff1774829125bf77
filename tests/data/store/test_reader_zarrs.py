"""Another codec pipeline set in zarr-python changes nothing: neither values, nor which path an array takes."""

import random

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.testing.stores.any_arrays import UnwritableError, write_any

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:zarr", "ignore::UserWarning:numcodecs")
PIPELINES = {
    "zarrs": {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"},
    "zarrs, strict": {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Arrays of any kind and their values, as zarr-python's own codecs write and read them."""
    folder, found = tmp_path_factory.mktemp("arrays"), []
    for seed in range(50):
        try:
            write_any(random.Random(seed), folder / str(seed), ndim=1 + seed % 3)
        except UnwritableError:
            continue
        found.append((folder / str(seed), zarr.open_array(folder / str(seed), mode="r")[...]))
    return found


@pytest.fixture(params=PIPELINES)
def pipeline(request):
    """A pipeline that the program has set for itself."""
    pytest.importorskip("zarrs")
    with zarr.config.set(PIPELINES[request.param]):
        yield PIPELINES[request.param]["codec_pipeline.path"]


def read_whole(reader, root):
    meta = read_meta(str(root))
    start = np.zeros((1, meta.ndim), np.int64)
    request = BoxRequest(arrays=(meta,), which=np.zeros(1, np.int64), starts=start, shape=meta.shape, dtype=meta.dtype)
    out = np.zeros((1, *meta.shape), meta.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all(), report.errors
    return meta, out[0], report


def test_values_and_paths_stay(stores, pipeline):
    """Every array reads as with zarr-python's own codecs; those of our own decoders never meet the pipeline."""
    slow = 0
    with BoxReader(threads=2, cache=0) as reader:
        for root, values in stores:
            meta, out, report = read_whole(reader, root)
            assert out.tobytes() == values.astype(meta.dtype).tobytes(), meta.document
            assert (report.slow_chunks == 0) or (meta.codec.kind == "zarr")
            assert (report.fast_chunks == 0) or (meta.codec.kind != "zarr")
            slow += report.slow_chunks
    assert slow > 100
    assert zarr.config.get("codec_pipeline.path") == pipeline


def test_our_own_decoders_need_no_pipeline(stores):
    """With one that does not even exist, everything that takes the fast path is read all the same."""
    fast = 0
    with zarr.config.set({"codec_pipeline.path": "nowhere.NoSuchPipeline"}), BoxReader(threads=1, cache=0) as reader:
        for root, values in stores:
            if read_meta(str(root)).codec.kind == "zarr":
                continue
            meta, out, report = read_whole(reader, root)
            assert out.tobytes() == values.astype(meta.dtype).tobytes()
            fast += report.fast_chunks
    assert fast > 100
