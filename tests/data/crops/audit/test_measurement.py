"""Measured beside predicted."""

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from rankwise.data.crops.audit.display import bench_facts, show_bench
from rankwise.data.crops.audit.judgement import AuditOptions, audit
from rankwise.data.crops.audit.measurement import keep_rates, measure
from rankwise.data.crops.audit.stores import load_rates
from rankwise.errors import ConfigError, DataError

CROP = (12, 20, 24)


def measured(*paths, rounds=30, **more):
    more = {"crop": CROP, "batch": 4, "threads": 1, "dtype": np.dtype("f4"), **more}
    return measure(paths, AuditOptions(**more), rounds=rounds)


def test_counts_are_as_predicted(write):
    """Chunks and decoded bytes of real reads are within 10 % of the prediction."""
    [group] = measured(write()).groups
    assert group.chunks == pytest.approx(group.predicted.cost.chunks_in_batch, rel=0.1)
    assert group.decode_bytes == pytest.approx(group.predicted.cost.decode_bytes, rel=0.1)
    assert len(group.wall_s) == len(group.cpu_s) == 30
    assert group.fast_share == 1


def test_aligned_crops_decode_the_least(write):
    """With origins on the grid every crop decodes exactly the chunks that hold it."""
    [group] = measured(write(), aligned=True, batch=1).groups
    assert group.chunks == group.predicted.cost.aligned_chunks == 8


def test_the_slow_path_is_named(write):
    """What only zarr-python decodes is the bottleneck, by name."""
    from zarr.codecs import GzipCodec

    report = measured(write(compressors=GzipCodec(level=1)), rounds=2)
    assert "zarr-python decodes these arrays (gzip)" in report.groups[0].bottleneck
    assert report.groups[0].fast_share == 0


def test_damage_is_raised(write):
    """A damaged chunk ends the measurement with its place."""
    from pathlib import Path

    path = write(shards=None)
    for file in Path(path, "c").rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * 40)
    with pytest.raises(DataError, match=r"a\.zarr"):
        measured(path, rounds=2)


def test_shown_and_as_facts(write):
    """The table ends with the bottleneck; the facts hold the same numbers."""
    report = measured(write(), rounds=3)
    out = StringIO()
    show_bench(report, Console(file=out, width=100))
    assert "predicted" in out.getvalue()
    assert out.getvalue().rstrip().splitlines()[-1].startswith("bottleneck: ")
    [group] = json.loads(json.dumps(bench_facts(report)))["groups"]
    assert group["chunks_per_crop"] == report.groups[0].chunks


def test_calibrated_audits_predict_this_machine(write):
    """After calibration the audit predicts the CPU time that was measured."""
    report = measured(write(), rounds=5)
    keep_rates(report)
    assert "zstd-1" in load_rates().origin
    assert load_rates().decode["zstd-1"] == report.groups[0].decode_rate(report.audit.rates)


def test_the_largest_part_is_named(write):
    """Of uncompressed data nothing is decoded: it is copied and cast."""
    from rankwise.data.crops.audit.measurement import _largest_part

    crop = (16, 32, 32)
    raw = audit([write(compressors=None)], AuditOptions(crop=crop))
    packed = audit([write("z.zarr")], AuditOptions(crop=crop, aligned=True))
    assert _largest_part(raw.groups[0], raw) in {"read", "cast", "chunks"}
    one_chunk_a_crop = replace(packed.rates, chunk_s=0.0)
    assert _largest_part(packed.groups[0], replace(packed, rates=one_chunk_a_crop)) == "decode"


def test_bad_options():
    """Numbers below 1 are refused."""
    with pytest.raises(ConfigError, match="rounds and batch"):
        measured(rounds=0)
