"""A loop that forgets `mark_done` is told that its epochs are one epoch."""

import logging

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader


@pytest.fixture
def source():
    return ArraySource({"n": np.arange(30)})


def epochs(loader, mark):
    """Show three epochs; return the ids of each."""
    shown = []
    for epoch in range(3):
        ids = []
        for (batch,) in loader:
            ids += batch.ids.tolist()
            mark(loader, batch, epoch)
        shown.append(ids)
    return shown


def test_epochs_that_nobody_marks_are_one_epoch(source, caplog):
    """The same batches come again, as documented; the second time it is said what to call, and only then."""
    with caplog.at_level(logging.WARNING, logger="rankwise.data"):
        first, second, third = epochs(
            SampleLoader(source, order=Order(source, batch_size=8), device=None), lambda *_: None
        )
    assert first == second == third
    [record] = caplog.records
    assert "epoch 0 was read completely, but no step was marked done" in record.getMessage()
    assert "loader.mark_done(batch.resume) after each step, or loader.set_epoch(n)" in record.getMessage()


@pytest.mark.parametrize(
    "way", ["marked", "left early", "sequential", "another epoch", "the same epoch", "another rank"]
)
def test_what_is_meant_is_not_said(source, caplog, way):
    """Loops that mark or choose epochs, or leave one, orders that are the same in any case, and other ranks."""
    order = Order(source, batch_size=8, kind="sequential" if way == "sequential" else "shuffle")

    class Second:
        rank, world_size, device = 1, 2, None

    loader = SampleLoader(source, order=order, device=None, world=Second() if way == "another rank" else None)
    with caplog.at_level(logging.WARNING, logger="rankwise.data"):
        if way == "left early":
            shown = [next(iter(loader))[0].share.ids.tolist() for _ in range(3)]
        else:
            marks = {
                "marked": lambda loader, batch, _: loader.mark_done(batch.resume),
                "another epoch": lambda loader, _, epoch: loader.set_epoch(epoch + 1),
                "the same epoch": lambda loader, *_: loader.set_epoch(0),  # as a trainer's validation does
            }
            shown = epochs(loader, marks.get(way, lambda *_: None))
    assert [len(ids) for ids in shown] == [{"left early": 8, "another rank": 15}.get(way, 30)] * 3
    assert not caplog.records
