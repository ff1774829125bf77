"""What annbatch 0.3.1 was measured to get wrong, with the numbers of those measurements; each has its test here."""

import numpy as np
import pytest

from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler

NUM_ROWS, BATCH = 10_000, 128


def rows_of(sampler, n_obs=NUM_ROWS):
    """Rows of one pass, batch after batch."""
    out = [np.empty(0, dtype=np.int64)]
    for request in sampler.sample(n_obs):
        listed = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
        out += [listed[split] for split in request["splits"]]
    return np.concatenate(out)


def random(**options):
    return RandomSampler(64, 4, BATCH, **{"rng": 0, **options})


def ranks(world_size, sampler, **options):
    return [
        DistributedSampler(sampler(), dist_info=lambda rank=rank: (rank, world_size), **options)
        for rank in range(world_size)
    ]


def test_gap_a_mask_under_a_distributed_sampler():
    """There rank 1 of 2 reads rows 4,992 to 9,983 of a training split that ends at 5,000: validation rows leak."""
    for rank in ranks(2, lambda: random(mask=slice(0, 5000))):
        assert rows_of(rank).max() < 5000


@pytest.mark.parametrize(("world_size", "lost"), [(2, 16), (3, 16), (4, 272), (7, 144)])
def test_gap_rows_that_are_lost_for_ever(world_size, lost):
    """There the same rows are left out of every epoch; here as many, but two epochs show all."""
    samplers = ranks(world_size, random)
    epochs = [np.concatenate([rows_of(sampler) for sampler in samplers]) for _ in range(2)]
    assert [NUM_ROWS - len(np.unique(rows)) for rows in epochs] == [lost, lost]
    assert len(np.unique(np.concatenate(epochs))) == NUM_ROWS


@pytest.mark.parametrize("world_size", [3, 7])
def test_gap_unequal_batches_that_are_equal(world_size):
    """There `enforce_equal_batches=False` still drops `n % world` rows; here every epoch shows every row once."""
    samplers = ranks(world_size, random, enforce_equal_batches=False)
    rows = np.concatenate([rows_of(sampler) for sampler in samplers])
    assert sorted(rows.tolist()) == list(range(NUM_ROWS))


class WithoutSplits(Sampler):
    """An own sampler that leaves the cutting to the class it inherits from."""

    batch_size, shuffle = 10, True

    def __init__(self, rng):
        self.rng = rng

    def _sample(self, n_obs):
        yield {"requests": [slice(0, n_obs)]}


def test_gap_samplers_that_draw_from_the_global_generator():
    """There requests without splits are cut by numpy's global generator, so that the seed of the sampler is nothing."""
    passes = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        passes.append(rows_of(WithoutSplits(0), 100).tolist())
    assert passes[0] == passes[1] != list(range(100))


def test_gap_epochs_that_must_be_replayed():
    """There an epoch that was left early changes all later ones, and epoch 3 wants 0 to 2 to be played."""
    whole, left, chosen = (random() for _ in range(3))
    passes = [rows_of(whole).tolist() for _ in range(4)]
    next(passing := left.sample(NUM_ROWS))
    passing.close()
    assert rows_of(left).tolist() == passes[1]
    chosen.set_epoch(3)
    assert rows_of(chosen).tolist() == passes[3]


@pytest.mark.parametrize(("asked", "there"), [(100, 128), (1000, 1024)])
@pytest.mark.parametrize("replacement", [False, True])
def test_gap_num_samples_that_are_rounded_up(asked, there, replacement):
    """There 100 samples at batch 64 are 128, and 1000 are 1024."""
    sampler = RandomSampler(64, 4, 64, replacement=replacement, num_samples=asked, rng=0)
    assert len(rows_of(sampler)) == asked < there
    assert sampler.n_batches(NUM_ROWS) == there // 64


def test_gap_edges_that_are_drawn_less_often():
    """There rows at the edge of the range are drawn a seventh as often as those in its middle (5.9 to 40.0)."""
    sampler = RandomSampler(64, 4, 64, replacement=True, num_samples=400_000, mask=slice(500, 1500), rng=0)
    counts = np.bincount(rows_of(sampler), minlength=1500)[500:]
    edges = np.concatenate([counts[:10], counts[-10:]]).mean()
    assert abs(edges / counts.mean() - 1) < 0.15


def test_gap_errors_without_a_hint():
    """There a part below one batch is "mask.start (0) must be < mask.stop (0)"; here it says what to change."""
    with pytest.raises(
        ValueError, match=r"4 ranks share 400 rows, 100 for each, .* batch_size \(128\).* Use a smaller"
    ):
        rows_of(ranks(4, random)[0], 400)


def test_gap_a_sampler_that_is_changed_in_place():
    """There the wrapped sampler was left with one rank's mask and generator (up to 0.3.0)."""
    sampler = random()
    wrapped = DistributedSampler(sampler, dist_info=lambda: (1, 2))
    rows_of(wrapped)
    assert sampler.mask == slice(0, None)
    assert sorted(rows_of(sampler).tolist()) == list(range(NUM_ROWS))
