"""What is seen of ranks that do not answer, in bounded time: a node that looks for too long counts as lost."""

import time

from rankwise import vitals
from rankwise.launch.failures import observation
from rankwise.launch.failures.observation import rank_states, read_stacks
from rankwise.vitals import Vital


def test_ranks_that_do_not_answer_are_not_waited_for_longer_than_was_said(tmp_path, monkeypatch):
    """Neither one after the other for their stacks, nor for what they have called."""
    asked = []

    def silent(vitals, timeout_s):
        asked.append((len(vitals), timeout_s))
        return {vital.rank: "" for vital in vitals}

    monkeypatch.setattr(vitals, "request_stacks", silent)
    now = time.monotonic()
    times = {"start_s": now, "heartbeat_s": now, "progress_s": now}
    said = {"pid": 0, "host": "", "signum": 10, "num_beats": 1, "epoch": 0, "step": 0, "phase": ""}
    found = [Vital(folder=tmp_path, rank=rank, **times, **said) for rank in range(8)]
    monkeypatch.setattr(observation, "_STACKS_S", 600.0)
    stacks = read_stacks(found, time.monotonic() + 300.0)
    assert set(stacks.values()) == {""}
    assert len(stacks) == 8
    ((num_ranks, patience_s),) = asked
    assert num_ranks == 8
    assert 0 < patience_s <= 300.0
    read_stacks(found, time.monotonic() - 1.0)
    assert asked[1][0] == 0

    limits = {}
    monkeypatch.setattr(vitals, "request_calls", lambda _, *patience: limits.setdefault("all", patience) and {})
    rank_states(found, stacks, time.monotonic() - 1.0)
    assert limits["all"] == (0.0, 0.0)
