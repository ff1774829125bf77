"""What a partition can give, without Slurm: its own words for GPUs, and each limit by name."""

import re

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.slurm.queue import Partition, num_gpus, parse_time

LIMITS = Partition(
    name="p",
    max_time_min=60,
    max_nodes=4,
    min_nodes=2,
    allowed_accounts=("physics",),
    denied_accounts=("guests",),
    node_cpus=8,
    node_gpus=2,
)
GOOD = {"nodes": 2, "time_min": 60, "account": "physics", "cpus_per_node": 8, "gpus_per_node": 2}


@pytest.mark.parametrize(
    ("text", "number"),
    [("gpu:2", 2), ("gpu:a100:4(S:0-1),gpu:v100:2", 6), ("(null)", 0), ("craynetwork:4,gpu:h100:8(S:0)", 8), ("", 0)],
)
def test_gpus_are_counted_in_slurms_words(text, number):
    """With and without type and sockets, beside other resources."""
    assert num_gpus(text) == number


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"nodes": 5}, "at most 4 node"),
        ({"nodes": 1}, "at least 2 nodes"),
        ({"time_min": 61}, "time limit of 60 minutes"),
        ({"time_min": None}, ""),
        ({"account": "biology"}, "account.s. physics, not for --account biology"),
        ({"account": None}, ""),
        ({"cpus_per_node": 9}, "has 8 cores"),
        ({"gpus_per_node": 3}, "has 2 GPU"),
        ({"gpus_per_node": None}, ""),
    ],
)
def test_what_can_never_run_is_named(change, reason):
    """One limit each; what is not asked for is not checked, and a partition without limits takes everything."""
    found = LIMITS.refusal(**{**GOOD, **change})
    assert re.search(reason, found) if reason else found == ""
    assert Partition(name="free").refusal(**{**GOOD, **change}) == ""


def test_times_are_read():
    """Ours and Slurm's words; no limit is no time."""
    assert [parse_time(text) for text in ("2h", "90", "1-12", "0:30")] == [120, 90, 2160, 1]
    with pytest.raises(ConfigError, match="--time must be 2h"):
        parse_time("UNLIMITED")
