"""`LatencyModel`: delays for opening arrays."""

import math

import pytest

import rankwise.data.crops as damacy


def test_delays_are_a_function_of_the_request():
    """Baseline plus a log-normal draw, at most the cap; the same for the same seed and request."""
    model = damacy.LatencyModel(baseline_ns=2e5, lognormal_mu=math.log(5e7), lognormal_sigma=2.0, cap_ns=1e9, seed=7)
    delays = [model.delay_s(n) for n in range(500)]
    assert delays == [model.delay_s(n) for n in range(500)]
    assert min(delays) > 2e-4
    assert max(delays) == 1.0
    assert 0.03 < sorted(delays)[250] < 0.08
    assert damacy.LatencyModel().delay_s(3) == 0
    assert damacy.LatencyModel(baseline_ns=5).delay_s(0) == pytest.approx(5e-9)


@pytest.mark.parametrize("wrong", [{"baseline_ns": -1}, {"cap_ns": math.inf}, {"lognormal_sigma": math.nan}])
def test_impossible_delays_are_refused(wrong):
    """Finite and not negative."""
    with pytest.raises(damacy.InvalidArgument, match="finite and at least 0"):
        damacy.LatencyModel(**wrong)


def test_delays_are_injected_and_counted(make):
    """Every array is delayed once, however many samples it gives; the statistics say how long."""
    volumes = [make(f"v{i}", seed=i) for i in range(3)]
    config = damacy.Config(
        samples_per_batch=6,
        sample_shape=(4, 8, 8),
        device="cpu",
        metadata_latency=damacy.LatencyModel(baseline_ns=1e6),
    )
    with damacy.Pipeline(config) as p:
        p.push([volume.sample(i, 0, 0) for i in range(2) for volume in volumes])
        p.pop()
        opened = p.stats().array_meta
        assert (opened.delays, opened.misses, opened.hits) == (3, 3, 9)
        assert opened.total_delay_s == pytest.approx(3e-3)
        assert opened.max_delay_s == pytest.approx(1e-3)
        p.stats_reset()
        assert p.stats().array_meta.delays == 0
