"""What is seen of ranks that do not answer, in bounded time: a node that looks for too long counts as lost."""

import time

from rankwise import vitals
from rankwise.launch.failures import observation
from rankwise.launch.failures.observation import observe
from rankwise.vitals import Vital


def test_ranks_that_do_not_answer_are_not_waited_for_longer_than_was_said(tmp_path, monkeypatch):
    """Neither one after the other for their stacks, nor for what they have called."""
    asked = []

    def silent(vitals, *patience):
        asked.append((len(vitals), *patience))
        return {}

    monkeypatch.setattr(vitals, "request_stacks", silent)
    monkeypatch.setattr(vitals, "request_calls", silent)
    now = time.monotonic()
    times = {"start_s": now, "heartbeat_s": now, "progress_s": now}
    said = {"pid": 0, "host": "", "signum": 10, "num_beats": 1, "epoch": 0, "step": 0, "phase": ""}
    found = [Vital(folder=tmp_path, rank=rank, **times, **said) for rank in range(8)]
    for limit in ("_STACKS_S", "_CALLS_S", "_BUSY_S"):
        monkeypatch.setattr(observation, limit, 600.0)
    assert [(seen.rank, seen.stacks, list(seen.groups)) for seen in observe(found, 300.0)] == [
        (r, "", []) for r in range(8)
    ]
    (_, for_stacks), (num_ranks, *for_calls) = asked
    assert num_ranks == 8
    assert for_stacks == 150.0
    assert all(0 < limit <= 300.0 for limit in for_calls)
    observe(found, 0.0)
    assert asked[2:] == [(8, 0.0), (8, 0.0, 0.0)]
