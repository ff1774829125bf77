"""Options are checked when they are made."""

import numpy as np
import pytest

from rankwise.data.store.remote import RemoteFiles, RemoteOptions
from rankwise.errors import ConfigError


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"retries": -1},
        {"retries": True},
        {"timeout_s": 0},
        {"connect_timeout_s": "5"},
        {"retry_deadline_s": float("nan")},
        {"coalesce_gap_bytes": -1},
        {"max_read_bytes": 0},
        {"backoff_s": -1},
        {"store": {1: 2}},
        {"store": "s3"},
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    """The message names the option."""
    with pytest.raises(ConfigError, match=rf"RemoteOptions\.{next(iter(wrong))} must be"):
        RemoteOptions(**wrong)


def test_numbers_of_numpy_are_numbers():
    """As everywhere else: whoever computes a limit with NumPy passes it on, and obstore gets Python's numbers."""
    made = RemoteOptions(concurrency=np.int64(8), timeout_s=np.float32(2.5), retries=np.uint8(3))
    assert (made.concurrency, made.timeout_s, made.retries) == (8, 2.5, 3)
    assert {type(made.concurrency), type(made.timeout_s), type(made.retries)} == {int, float}


def test_options_that_a_store_does_not_know_are_refused():
    """At the first request; by name, without values."""
    files = RemoteFiles(RemoteOptions(store={"bogus": "hush"}))
    with pytest.raises(ConfigError, match=r"cannot open a store for s3://b with the options .*'bogus'") as caught:
        files.read_document("s3://b/x")
    assert "hush" not in str(caught.value)


def test_options_of_one_kind_of_store_do_not_reach_another():
    """A mapping below the name of a scheme is for that scheme only."""
    files = RemoteFiles(RemoteOptions(store={"s3": {"bogus": "x"}, "allow_http": True}))
    assert files.read_document("memory://options/x") is None
    with pytest.raises(ConfigError, match="bogus"):
        files.read_document("s3://b/x")


def test_options_are_values():
    """Equal ones compare equal, and can be keys."""
    one, other = (RemoteOptions(store={"region": region}) for region in ("a", "b"))
    assert one == RemoteOptions(store={"region": "a"})
    assert one != other
    assert len({one, other, RemoteOptions(store={"region": "a"})}) == 2
