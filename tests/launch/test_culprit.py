"""Who holds the others up, from what the ranks last called: a pure function, on invented states."""

import pytest

from rankwise.launch.failures.culprit import find_culprit
from rankwise.launch.failures.observation import Observation


def call(number, name="all_reduce", *, ended=True, sizes=((4,),), dtypes=("Float",), line="", **arguments):
    return {
        "number": number, "name": name, "sizes": [list(size) for size in sizes], "dtypes": list(dtypes), "ended": ended,
        "arguments": {key: str(value) for key, value in arguments.items()}, "line": line,
    }  # fmt: skip


def stacks(place, *, waits=False):
    """The stacks of a rank at "file:line in function", in a collective or not."""
    file, _, rest = place.partition(":")
    line, _, name = rest.partition(" in ")
    inner = '  File "/x/torch/distributed/distributed_c10d.py", line 9 in barrier\n' if waits else ""
    return f'Thread 0x1 (most recent call first):\n{inner}  File "{file}", line {line} in {name}' if place else ""


def state(rank, *calls, world=4, name="0", place="", **more):
    groups = [{"name": name, "ranks": list(range(world)), "calls": list(calls)}] if calls else []
    return Observation(rank=rank, stacks=stacks(place), groups=groups, **more)


def waiting(rank, number, **more):
    return state(rank, call(number - 1), call(number, ended=False), **more)


def test_who_is_missing():
    """The lowest number is behind; the call and the line are those of who waits."""
    states = [waiting(rank, 417, place="train.py:88 in step") for rank in (0, 1, 3)]
    verdict = find_culprit([*states, state(2, call(416), place="data.py:31 in load")])
    assert verdict.ranks == (2,)
    assert verdict.text == (
        "rank 2 has not joined all_reduce #417 of the default group (ranks 0-1,3 wait there, train.py:88 in step); "
        "it is in data.py:31 in load"
    )


def test_several_are_missing():
    """All that are furthest behind are named, with their places."""
    states = [
        waiting(0, 5),
        waiting(1, 5),
        state(2, call(4), place="a.py:1 in f"),
        state(3, call(4), place="b.py:2 in g"),
    ]
    verdict = find_culprit(states)
    assert (verdict.kind, verdict.ranks) == ("missing", (2, 3))
    assert "ranks 2-3 have not joined" in verdict.text
    assert "rank 2 is in a.py:1 in f, rank 3 is in b.py:2 in g" in verdict.text


def test_who_did_not_answer_is_no_culprit_beside_one_who_is_behind():
    """On a busy machine a rank may run and not answer in time: it is told apart, and never said to be behind."""
    states = [waiting(0, 5), state(1, place="train.py:9 in f"), state(2, call(4), place="a.py:1 in f"), state(3)]
    verdict = find_culprit(states)
    assert (verdict.kind, verdict.ranks) == ("missing", (2,))
    assert "rank 2 has not joined all_reduce #5" in verdict.text
    assert "ranks 1,3 did not report their calls" in verdict.text
    silent = find_culprit([waiting(0, 5), waiting(1, 5), waiting(2, 5), state(3, state="silent")])
    assert (silent.kind, silent.ranks) == ("missing", (3,))
    alone = find_culprit([waiting(0, 5), waiting(1, 5), waiting(2, 5), state(3)])
    assert (alone.kind, alone.ranks) == ("missing", (3,))


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (call(3, "broadcast", ended=False), "operation"),
        (call(3, ended=False, sizes=[(5,)]), "shape 5"),
        (call(3, ended=False, dtypes=["Double"]), "dtype Double"),
        (call(3, ended=False, op="MAX"), "arguments op MAX"),
    ],
)
def test_a_call_that_differs(odd, what):
    """The minority is named, with what differs."""
    states = [state(rank, call(3, ended=False, op="SUM")) for rank in (0, 2, 3)]
    odd = {**odd, "arguments": odd["arguments"] or {"op": "SUM"}}
    verdict = find_culprit([*states, state(1, odd)])
    assert (verdict.kind, verdict.ranks) == ("mismatch", (1,))
    assert what in verdict.text


def test_two_ranks_that_differ_are_both_named():
    """One of two is no majority."""
    verdict = find_culprit(
        [state(0, call(3, ended=False), world=2), state(1, call(3, "broadcast", ended=False), world=2)]
    )
    assert (verdict.kind, verdict.ranks) == ("mismatch", (0, 1))


def test_shapes_may_differ_where_they_may():
    """A gather to one rank takes other shapes on each: no mismatch."""
    states = [state(rank, call(3, "gather", ended=False, sizes=[(rank,)])) for rank in range(4)]
    assert find_culprit(states).kind == "transport"


def test_an_old_mismatch_is_told_besides():
    """What ended everywhere is not what they wait for."""
    states = [state(rank, call(2, op="SUM"), call(3, ended=False)) for rank in (0, 1)]
    verdict = find_culprit([*states, state(2, call(2, op="MAX"))])
    assert (verdict.kind, verdict.ranks) == ("missing", (2,))
    assert "in addition, the arguments of call #2" in verdict.text


def test_who_is_missed_because_it_waits_elsewhere_is_no_culprit():
    """Ranks 0 and 1 wait for 2 in their group; 2 waits for 3 in another: 3 it is."""

    def both(rank, first, second):
        groups = [{"name": "0", "ranks": [0, 1, 2, 3], "calls": first}, {"name": "1", "ranks": [2, 3], "calls": second}]
        return Observation(
            rank=rank, groups=[g for g in groups if rank in g["ranks"]], stacks=stacks(f"x.py:{rank} in f")
        )

    states = [
        both(0, [call(7, ended=False)], []),
        both(1, [call(7, ended=False)], []),
        both(2, [call(6)], [call(9, ended=False)]),
        both(3, [call(7, ended=False)], [call(8)]),
    ]
    assert find_culprit(states).kind == "crossed"
    states[3] = both(3, [call(6)], [call(8)])
    verdict = find_culprit(states)
    assert (verdict.kind, verdict.ranks) == ("missing", (3,))


@pytest.mark.parametrize(("kind", "text"), [("gone", "has ended"), ("stopped", "is stopped")])
def test_a_process_that_does_not_run(kind, text):
    """It is named before all else."""
    verdict = find_culprit(
        [waiting(0, 3, place="t.py:1 in f"), waiting(1, 3, place="t.py:1 in f"), Observation(rank=2, state=kind)]
    )
    assert (verdict.kind, verdict.ranks) == (kind, (2,))
    assert f"rank 2 {text}" in verdict.text
    assert "ranks 0-1 wait in all_reduce #3" in verdict.text


def test_without_records_the_stacks_tell():
    """A torch whose recorder is off: who is not in a collective holds the others up."""
    states = [Observation(rank=r, stacks=stacks(f"t.py:{r} in f", waits=r != 1)) for r in range(3)]
    verdict = find_culprit(states)
    assert (verdict.kind, verdict.ranks) == ("missing", (1,))
    nobody = find_culprit([Observation(rank=r, stacks=stacks("t.py:1 in f")) for r in range(2)])
    assert (nobody.kind, nobody.ranks) == ("unknown", ())


def test_all_alike_blames_the_network():
    """The same call with the same arguments everywhere."""
    assert find_culprit([waiting(rank, 3) for rank in range(4)]).kind == "transport"
