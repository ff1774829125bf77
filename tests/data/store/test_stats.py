"""Counters of reads."""

from dataclasses import astuple, fields

from rankwise.data.store import Counters, StoreStats


def test_every_field_adds_up():
    """Sums are per field, none is left out."""
    ones = StoreStats(**{field.name: 10**place for place, field in enumerate(fields(StoreStats))})
    counters = Counters()
    for _ in range(3):
        counters.add(ones)
    assert astuple(counters.stats) == tuple(3 * 10**place for place in range(len(fields(StoreStats))))
