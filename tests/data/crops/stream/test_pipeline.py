"""`Pipeline(config)`: pushed samples come back as batches, in order."""

import numpy as np
import pytest

import rankwise.data.crops as damacy


def test_rows_are_the_samples_in_order(volume, config, check):
    """Row i is the i-th pushed sample, byte for byte; the last batch is ragged."""
    samples = list(volume.samples(10))
    with damacy.Pipeline(config()) as p:
        assert isinstance(p, damacy.Pipeline)
        p.push(samples)
        assert len(p) == 3
        batches = [p.pop() for _ in range(3)]
        assert len(p) == 0
    assert [s for batch in batches for s in batch.samples] == samples
    assert np.concatenate([batch.numbers for batch in batches]).tolist() == list(range(10))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    for batch in batches:
        check(batch, volume)


def test_pushes_chain(volume, config):
    """What is pushed later follows, and fills the batch that was begun; generators and lists mix."""
    samples = list(volume.samples(11))
    with damacy.Pipeline(config()) as p:
        p.push(samples[:3])
        p.push(s for s in samples[3:9])
        p.push(tuple(samples[9:]))
        assert [len(batch) for batch in p] == [4, 4, 3]
        p.push(samples[:4])
        (batch,) = p
        assert batch.samples == tuple(samples[:4])
        assert batch.numbers.tolist() == [11, 12, 13, 14]


def test_past_the_end(volume, config):
    """When everything was popped, pop says so at once, iteration ends, and a later push goes on."""
    with damacy.Pipeline(config()) as p:
        with pytest.raises(damacy.TryAgain, match="has been popped"):
            p.pop()
        assert list(p) == []
        assert not p.pending
        p.push([])
        assert len(p) == 0
        with pytest.raises(damacy.TryAgain):
            p.pop()
        p.push(volume.samples(4))
        assert len(p.pop()) == 4


def test_the_last_batch_can_be_dropped(volume, config):
    """With drop_last every batch is whole; what is left waits for more."""
    with damacy.Pipeline(config(drop_last=True)) as p:
        p.push(list(volume.samples(6)))
        assert len(p) == 1
        assert [len(batch) for batch in p] == [4]
        with pytest.raises(damacy.TryAgain, match="except 2 samples, which do not fill a batch of 4"):
            p.pop()
        p.push(volume.samples(2))
        assert len(p.pop()) == 4


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda v: [v.sample(0, 0, 0, shape=(4, 8, 9))], damacy.InvalidSample, r"has the shape \[4, 8, 9\]"),
        (lambda v: [v.sample(0, 0, shape=(4, 8))], damacy.RankMismatch, r"has the shape \[4, 8\]"),
        (lambda v: ["a.zarr"], damacy.InvalidSample, "sample 0 is a str"),
        (lambda v: v.sample(0, 0, 0), damacy.InvalidArgument, "got one Sample"),
        (lambda v: "a.zarr", damacy.InvalidArgument, "needs an iterable"),
        (lambda v: 5, damacy.InvalidArgument, "needs an iterable"),
    ],
)
def test_lists_are_checked_when_pushed(volume, wrong, kind, message, config):
    """What does not fit the configuration is refused by push itself, and nothing of it is taken."""
    with damacy.Pipeline(config()) as p:
        with pytest.raises(kind, match=message):
            p.push(wrong(volume))
        assert not p.pending
        p.push(iter([*volume.samples(3), volume.sample(0, 0, 0, shape=(4, 8, 9))]))
        with pytest.raises(damacy.InvalidSample, match="sample 3: its box"):
            p.pop()
        assert len(p.pop()) == 3


def test_caps_on_chunks_and_files(volume, config):
    """Caps of the configuration are kept: what breaks one is told with the number that would do."""
    with damacy.Pipeline(config(max_chunk_uncompressed_bytes=999)) as p:
        p.push(volume.samples(1))
        with pytest.raises(damacy.BudgetExceeded, match="raise it to 1000"):
            p.pop()
    with damacy.Pipeline(config(max_shards_per_sample=1)) as p:
        p.push([volume.sample(8, 0, 0), volume.sample(0, 0, 0)])
        with pytest.raises(damacy.InvalidSample, match="touches 2 files"):
            p.pop()
        assert p.pop().numbers.tolist() == [1]
    with damacy.Pipeline(config(max_shards_per_sample=1, pad="fill")) as p:
        p.push([volume.sample(-1, 0, 0)])  # what is outside the array is in no file
        assert len(p.pop()) == 1


# of damacy 0.0.1's documentation
COUNTERS = (
    "array_meta_hits",
    "array_meta_misses",
    "shard_index_hits",
    "shard_index_misses",
    "chunk_layout_hits",
    "chunk_layout_misses",
    "metadata_latency_ops",
    "metadata_latency_stat_ops",
    "metadata_latency_submit_ops",
    "metadata_latency_active",
    "metadata_latency_max_active",
    "metadata_latency_total_sleep_ns",
    "metadata_latency_max_sleep_ns",
    "metadata_backend_read_jobs",
    "metadata_backend_read_active",
    "metadata_backend_read_max_active",
    "batches_emitted",
    "waves_emitted",
    "chunks_planned",
    "chunks_to_load",
    "chunks_dispatched",
    "reads_issued",
    "worker_steps",
    "gpu_bytes_committed",
)


def test_every_counter_of_the_migration_is_there(volume, config):
    """Counters keep their names; those of caches and metadata count what they say."""
    latency = damacy.LatencyModel(baseline_ns=1e6)
    with damacy.Pipeline(config(metadata_latency=latency)) as p:
        p.push(volume.samples(8))
        list(p)
        stats = p.stats()
    assert all(isinstance(getattr(stats, name), int) for name in COUNTERS)
    assert stats.array_meta_misses == stats.metadata_backend_read_jobs == stats.metadata_latency_ops == 1
    assert stats.metadata_latency_total_sleep_ns == stats.metadata_latency_max_sleep_ns == 10**6
    assert stats.shard_index_misses > 0
    assert stats.shard_index_hits > 0


def test_statistics(volume, config):
    """Stages are timed, chunks and bytes counted; a reset starts times and counts anew and keeps the rest."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.samples(8))
        list(p)
        stats = p.stats()
        assert (stats.batches_emitted, stats.waves_emitted, stats.samples_emitted) == (2, 2, 8)
        assert stats.decode.count == 2
        assert stats.decode.output_bytes == 8 * 4 * 8 * 8 * 4
        assert stats.decode.best_ms <= stats.decode.ms
        assert stats.pull.count == 9
        assert stats.wanted_bytes == 8 * 4 * 8 * 8 * 2
        assert stats.chunks_planned >= 8
        assert stats.fast_chunks + stats.slow_chunks == stats.chunks_dispatched
        assert stats.decode_waste > 1
        assert (stats.array_meta.misses, stats.array_meta.hits) == (1, 15)
        assert stats.gpu_bytes_committed == 4 * 4 * 4 * 8 * 8 * 4
        assert {metric.name for metric in stats.metrics} >= {
            "plan",
            "io",
            "decode",
            "assemble",
            "bind_wait",
            "pop_wait",
        }
        assert "2 batches, 8 samples" in str(stats)
        p.stats_reset()
        assert p.stats().decode.count == p.stats().batches_emitted == 0
        assert p.stats().array_meta.misses == 1
        assert p.stats().gpu_bytes_committed == stats.gpu_bytes_committed
