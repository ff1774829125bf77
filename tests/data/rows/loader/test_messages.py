"""What a loader of rows says once, and which arguments it refuses."""

import logging

import numpy as np
import pytest

from rankwise.data.rows import Loader, notices
from rankwise.data.rows.samplers import RandomSampler, SequentialSampler
from rankwise.errors import MissingExtraError


def test_a_pass_without_a_batch_is_said(caplog, monkeypatch):
    """Fewer rows than one batch, of which what fills none is left out: nothing comes, and once it is said why."""
    monkeypatch.setattr(notices, "_said", set())
    loader = Loader(chunk_size=4, preload_nchunks=4, batch_size=16, drop_last=True, shuffle=False)
    loader.add_dataset(np.ones((15, 3), dtype="f4"))
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        assert [len(list(loader)) for _ in range(2)] == [0, 0]
    [record] = [record for record in caplog.records if "had no batch" in record.getMessage()]
    assert "a pass over 15 rows" in record.getMessage()
    assert "batches of 16 rows" in record.getMessage()


def test_the_order_that_was_not_chosen_is_said_once(caplog, monkeypatch):
    """Without shuffle= rows come in stored order; who says shuffle=False is told nothing."""
    monkeypatch.setattr(notices, "_said", set())
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        Loader(shuffle=False)
        assert caplog.text == ""
        assert isinstance(Loader().batch_sampler, SequentialSampler)
        Loader()
    assert caplog.text.count("stored order") == 1
    assert isinstance(Loader(shuffle=True, rng=0).batch_sampler, RandomSampler)


def test_arguments_that_cannot_work(monkeypatch):
    """Sampler and its arguments together, unknown or absent libraries, a GPU that is not there, no data."""
    with pytest.raises(ValueError, match="Cannot specify batch_size, rng when providing batch_sampler"):
        Loader(batch_sampler=SequentialSampler(1, 1, 1), batch_size=3, rng=np.random.default_rng())
    with pytest.raises(ValueError, match="to must be None, 'torch' or 'jax'"):
        Loader(to="numpy", shuffle=False)
    monkeypatch.setattr("rankwise.data.rows.loader.defaults.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs jax: pip install 'rankwise\[jax\]'"):
        Loader(to="jax", shuffle=False)
    with pytest.raises(ValueError, match="preload_to_gpu=True needs to='torch'"):
        Loader(preload_to_gpu=True, shuffle=False)
    empty = Loader(shuffle=False)
    for ask in (lambda: next(iter(empty)), lambda: empty.n_var, lambda: empty.dataset_type):
        with pytest.raises(ValueError, match=r"(no rows: call|No datasets added yet)"):
            ask()
    with pytest.raises(ValueError, match="at least one AnnData"):
        empty.add_adatas([])
