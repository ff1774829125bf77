"""`Config`: defaults that work, and refusals that say what would."""

from dataclasses import replace

import numpy as np
import pytest

from rankwise.data.crops import Config, Dtype, Field, InvalidArgument, NumaStrategy, Scaling

SMALL = {"samples_per_batch": 8, "sample_shape": (4, 8, 8)}


@pytest.mark.parametrize("samples_per_batch", [1, 2, 4, 8, 16, 64, 512])
def test_defaults_fit_every_batch_size(samples_per_batch):
    """Cache and queue sizes follow from the batch: nobody has to set them for a larger one."""
    config = Config(samples_per_batch=samples_per_batch, sample_shape=(4, 8, 8), max_gpu_memory_bytes=1 << 30)
    assert config.lookahead == 2 * samples_per_batch
    assert config.num_metas >= config.lookahead + samples_per_batch


def test_defaults_are_those_that_are_documented():
    """`Config.default` is the same, and `replace` makes variants that are checked again."""
    config = Config.default(**SMALL)
    assert config == Config(**SMALL)
    assert (config.dtype, config.pop_timeout_s, config.host_buffer_waves) == (Dtype.F32, 30.0, 4)
    assert (config.numa_strategy, config.numa_node, config.metadata_io_concurrency) == (NumaStrategy.AUTO, -1, 64)
    assert (config.max_read_op_bytes, config.max_chunks_per_wave) == (4 * 2**20, 512)
    assert replace(config, samples_per_batch=3).lookahead == 6
    with pytest.raises(InvalidArgument, match="samples_per_batch must be an integer of at least 1"):
        replace(config, samples_per_batch=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"samples_per_batch": 0}, "samples_per_batch must be an integer of at least 1"),
        ({"samples_per_batch": 2.0}, "integer of at least 1, got 2.0"),
        ({"sample_shape": ()}, "1 to 31 extents"),
        ({"sample_shape": (4, 0)}, "all at least 1"),
        ({"sample_shape": 4}, "tuple of integers"),
        ({"max_gpu_memory_bytes": 0}, "at least 1, got 0; None derives it"),
        ({"dtype": "f8x"}, "dtype must be one of f32, bf16"),
        ({"lookahead_samples": 7}, "use at least 8"),
        ({"n_array_meta_cache": 23}, "needs at least 24"),
        ({"n_shard_index_cache": 1}, "needs at least 24"),
        ({"n_chunk_layout_cache": 1, "lookahead_samples": 100}, "needs at least 108"),
        ({"max_chunk_uncompressed_bytes": 2**32}, "1 to 4294967295"),
        ({"max_read_op_bytes": 0}, "1 to 4294967295"),
        ({"host_buffer_waves": 1}, "2 to 8"),
        ({"host_buffer_waves": 9}, "2 to 8"),
        ({"max_chunks_per_wave": 65536}, "1 to 65535"),
        ({"n_io_threads": 0}, "1 to 1024"),
        ({"n_io_threads": 1025}, "1 to 1024"),
        ({"metadata_io_concurrency": 4097}, "1 to 4096"),
        ({"metadata_io_concurrency": None}, "an integer"),
        ({"max_shards_per_sample": 0}, "at least 1"),
        ({"pop_timeout_s": 0}, "above 0, or None"),
        ({"pop_timeout_s": float("inf")}, "above 0, or None"),
        ({"enable_gds": True}, "GPUDirect"),
        ({"numa_strategy": NumaStrategy.PIN_TO}, "numa_node must be the node"),
        ({"numa_node": 0}, "numa_node must be the node"),
        ({"numa_strategy": 7}, "NumaStrategy.AUTO"),
        ({"device": -1}, "at least 0"),
        ({"device": True}, "at least 0"),
        ({"on_bad_sample": "skip"}, 'an integer of at least 0, .* or "raise"'),
        ({"on_bad_sample": -1}, 'an integer of at least 0, .* or "raise"'),
        ({"transform": 3}, "must be a function"),
        ({"batch_transform": lambda fields: fields}, r"batch_transform= is called as batch_transform\(fields, keys\)"),
        ({"pad": "wrap"}, '"fill", "edge", "reflect"'),
        ({"dtype": "u8", "normalise": Scaling(2.0)}, "use a float dtype"),
        ({"fields": {"image": Field(sample_shape=(4,))}}, "rename one"),
        ({"fields": {"image_mask": Field(sample_shape=(4,))}}, "name of the mask"),
        ({"fields": {"seg": Field(sample_shape=())}}, "1 to 31 extents"),
        ({"fields": {"seg": (4, 8, 8)}}, r"map names to Field\(sample_shape="),
        ({"fields": ["seg"]}, r"map names to Field\(sample_shape="),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
    ],
)
def test_what_cannot_work_is_refused(values, message):
    """Zero is never a default, a size that is too small is answered with the one that is needed."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        Config(**{**SMALL, **values})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)


def test_what_is_allowed_is_allowed():
    """The edges of the ranges pass, and so do NumPy's integers."""
    config = Config(
        samples_per_batch=np.int64(8),
        sample_shape=np.array([4, 8]),
        lookahead_samples=8,
        n_array_meta_cache=16,
        host_buffer_waves=8,
        n_io_threads=1024,
        enable_gds=False,
        numa_strategy=NumaStrategy.PIN_TO,
        numa_node=0,
        on_bad_sample=0,
        pop_timeout_s=None,
        device=0,
        seed=np.int64(5),
    )
    assert config.sample_shape == (4, 8)
    assert type(config.seed) is int
    assert isinstance(config.samples_per_batch, int)
