"""The root cause is the earliest failure that is not the consequence of another."""

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import CheckpointError, DesyncError
from rankwise.launch.failures.outcome import AttemptEnd
from rankwise.launch.failures.report import Report, make_report
from rankwise.launch.failures.verdict import decide
from rankwise.launch.local.process import RankEnd

GLOO_CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12199"
GLOO_TIMEOUT = "[/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete"


def report(rank, time_s, kind="ValueError", message="x", *, peers=(), causes=(), exitcode=1):
    return Report(
        rank=rank,
        time_s=time_s,
        type=kind,
        message=message,
        causes=causes,
        traceback=f'File "/site/torch/distributed/distributed_c10d.py", trace of {rank}',
        exitcode=exitcode,
        peers=peers,
    )


def raised(rank, time_s, *args, **more):
    return RankEnd(rank=rank, status=1, ended_s=time_s + 0.01, report=report(rank, time_s, *args, **more))


def ended(rank, time_s, status, **more):
    return RankEnd(rank=rank, status=status, ended_s=time_s, **more)


@pytest.mark.parametrize(
    ("kind", "message", "more", "collateral"),
    [
        ("RuntimeError", GLOO_CLOSED, {}, True),
        ("RuntimeError", GLOO_TIMEOUT, {}, True),
        ("torch.distributed.DistNetworkError", "The client socket has timed out after 1000ms", {}, True),
        (
            "torch.distributed.DistBackendError",
            "NCCL error: remote process exited or there was a network error",
            {},
            True,
        ),
        ("rankwise.errors.StepError", "no", {"causes": (f"RuntimeError: {GLOO_CLOSED}",)}, True),
        ("rankwise.errors.WorldError", "1 of 3 ranks did not arrive in time: 1. Look at their output", {}, True),
        ("rankwise.errors.DesyncError", "rank 2 failed", {"peers": (2,)}, True),
        ("rankwise.errors.DesyncError", "ranks differ", {"peers": (0, 1)}, False),
        ("ValueError", "the timeout must be positive", {}, False),
        ("FileNotFoundError", "no such file", {}, False),
        ("RuntimeError", "shape mismatch in all_reduce", {}, False),
    ],
)
def test_collateral_errors(kind, message, more, collateral):
    """Errors that say a peer was lost or waited for in vain are collateral; errors of the program are not."""
    assert report(0, 1.0, kind, message, **more).is_collateral == collateral


def test_a_cause_beats_an_earlier_consequence():
    """A rank that lost its peer may report before the kernel has told us of the peer's death."""
    verdict = decide([raised(0, 1.0, "RuntimeError", GLOO_CLOSED), ended(1, 1.1, -signal.SIGKILL)])
    assert (verdict.rank, verdict.exitcode) == (1, 137)


def test_an_abort_inside_c_is_weaker_than_an_exception():
    """Gloo aborts processes whose peer vanished: an exception elsewhere is the cause, also when it came later."""
    verdict = decide([ended(0, 1.0, -signal.SIGABRT), raised(1, 1.2)])
    assert verdict.rank == 1
    assert decide([ended(0, 1.0, -signal.SIGABRT), raised(1, 0.9, "RuntimeError", GLOO_CLOSED)]).rank == 0


def test_what_we_did_is_not_a_failure():
    """Ranks that ended because they were asked to have not failed."""
    stopped = ended(0, 2.0, -signal.SIGTERM, sent=signal.SIGTERM, sent_s=1.5)
    assert decide([stopped, ended(1, 1.0, 0)]) is None
    assert decide([stopped, raised(1, 1.0)]).rank == 1


@pytest.mark.parametrize("message", [GLOO_CLOSED, GLOO_TIMEOUT])
@pytest.mark.parametrize(
    "left", [ended(1, 1.0, 0), ended(1, 2.9, 0), ended(1, 60.0, -9, sent=9, sent_s=7.0, finished_s=2.1)]
)
def test_a_rank_that_left_early_is_named(message, left):
    """Everybody lost rank 1, which had finished well; that its end is seen after theirs does not matter."""
    verdict = decide([raised(0, 2.0, "RuntimeError", message), left])
    assert (verdict.rank, verdict.witness) == (1, 0)
    assert "had finished (exit 0) while rank 0 still waited" in verdict.headline
    assert "trace of 0" in verdict.detail
    assert verdict.exitcode == 1


def test_a_rank_that_finished_is_not_blamed_for_what_another_does_alone():
    """Rank 0 uploads its results after the others have finished, and its server is away: that is its own failure."""
    alone = raised(0, 2.0, "ConnectionRefusedError", "[Errno 111] Connection refused")
    alone = replace(alone, report=replace(alone.report, traceback='File "/home/me/train.py", line 9, in upload'))
    assert decide([alone, ended(1, 1.0, 0)]).rank == 0
    lost = raised(0, 2.0, "RuntimeError", GLOO_CLOSED)
    assert decide([lost, ended(1, 30.0, 0)]).rank == 0, "it finished long after"


def test_an_error_that_tells_of_another_rank_is_collateral():
    """A CheckpointError that was raised because of rank 1, on rank 0: its cause says whose failure it is."""
    error = CheckpointError("saving failed on another rank")
    error.__cause__ = DesyncError("rank 1 failed in saving: no space left on device", ranks=(1,))
    told, own = make_report(error, 0, 1), make_report(error, 1, 1)
    assert told.peers == (1,)
    assert told.is_collateral
    assert not own.is_collateral
    cause = raised(1, 2.0, "rankwise.errors.CheckpointError", "saving failed on rank 1: no space left")
    assert decide([RankEnd(rank=0, status=1, ended_s=1.0, report=told), cause]).rank == 1


def test_exit_codes():
    """The launch exits with the root's code, 128 + signal for a signal."""
    assert decide([ended(0, 1.0, 3)]).exitcode == 3
    assert decide([ended(0, 1.0, -9)]).exitcode == 137
    assert decide([raised(0, 1.0, "SystemExit", "7", exitcode=7)]).exitcode == 7


def test_the_status_of_a_rank_that_was_stopped_on_its_way_out():
    """A rank that raised and was still ending when all were stopped has failed with its own code, not by our signal."""
    slow = replace(raised(0, 1.0), status=-15, sent=15, sent_s=1.2, ended_s=1.3)
    assert decide([slow, ended(1, 1.3, -15, sent=15, sent_s=1.2)]).status == 1


@given(st.lists(st.tuples(st.sampled_from(["cause", "lost", "fine", "stopped"]), st.floats(0, 100)), min_size=1))
def test_against_a_slow_reference(fates):
    """For any mixture of fates: the earliest cause, else who left before it was lost, else the earliest loss."""
    make = {
        "cause": raised,
        "lost": lambda rank, time_s: raised(rank, time_s, "RuntimeError", GLOO_TIMEOUT),
        "fine": lambda rank, time_s: ended(rank, time_s, 0),
        "stopped": lambda rank, time_s: ended(rank, time_s, -15, sent=15, sent_s=time_s - 1),
    }
    verdict = decide([make[fate](rank, time_s) for rank, (fate, time_s) in enumerate(fates)])
    first = {fate: min((time_s for name, time_s in fates if name == fate), default=None) for fate, _ in fates}
    if "cause" in first:
        wanted = "cause"
    elif "lost" in first:
        wanted = "fine" if first.get("fine", 1e9) < first["lost"] + 2.0 else "lost"
    else:
        assert verdict is None
        return
    assert fates[verdict.rank] == (wanted, first[wanted])


def test_a_very_long_message_is_cut_on_the_console():
    """An exception that prints a whole array shows its beginning and its end, and says how much is left out."""
    failure = decide([raised(0, 1.0)])
    failure = replace(failure, detail="begin " + "x" * 5_000_000 + " end")
    text, _ = AttemptEnd(failure=failure, ranks=(), world_size=1).describe()
    assert len(text) < 70_000
    assert "begin x" in text
    assert "x end\n" in text
    assert "characters are not shown here" in text
