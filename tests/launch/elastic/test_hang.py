"""Who of all nodes' ranks is blamed, from what the nodes see."""

import pytest

from rankwise.launch.elastic.hang import Inquiry, Verdict, view_from
from rankwise.launch.failures.observation import Sighting, shortened, sighting_from

COLLECTIVE = (
    'Thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line 9 in all_reduce'
)
ELSEWHERE = 'Thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 3 in load'
NODES = {1: "anna", 2: "bert", 3: "cleo"}


def view(*ranks, quiet_s=20.0, missing=(), **fields):
    found = [Sighting(rank=rank, stacks=stacks, said=f"step {rank}", **fields).to_dict() for rank, stacks in ranks]
    return view_from({"quiet_s": quiet_s, "missing": list(missing), "ranks": found})


def inquiry(*, final=True, limit_s=10.0, **views):
    views = {key: views[name] for key, name in NODES.items() if name in views}
    return Inquiry(key=1, final=final, limit_s=limit_s, reason="the reason", begun_s=100.0, views=views)


ANNA = view((0, COLLECTIVE), (1, COLLECTIVE))
BERT = view((2, COLLECTIVE), (3, ELSEWHERE))
CLEO = view((4, COLLECTIVE), (5, COLLECTIVE))


def test_the_one_that_does_not_wait_is_blamed_on_its_node():
    """Whoever asked; its place and stacks go to its own node."""
    found = inquiry(anna=ANNA, bert=BERT, cleo=CLEO).conclude(NODES, 101.0)
    assert (found.key, found.failure["rank"], found.failure["waits"]) == (2, 3, False)
    assert found.failure["headline"] == (
        "hangs (step 3, at /home/me/train.py:3 in load): the reason; the others wait for it in a collective"
    )
    assert sorted(found.failure["places"]) == ["0", "1", "2", "3", "4", "5"]


def test_nothing_is_said_before_all_have_answered_or_had_their_time():
    """A node that does not answer is named, and the others are judged without it."""
    asked = inquiry(anna=ANNA, bert=BERT)
    assert asked.conclude(NODES, 101.0) is None
    found = asked.conclude(NODES, 116.0)
    assert found.failure["headline"].endswith("; node cleo does not answer")


def test_nobody_is_blamed_while_a_node_advances():
    """Unless a rank has given up waiting already: then it is too late for that."""
    moving = view((4, ELSEWHERE), quiet_s=1.0)
    assert inquiry(anna=ANNA, bert=BERT, cleo=moving).conclude(NODES, 101.0) == Verdict(key=1)
    assert inquiry(anna=ANNA, bert=CLEO, cleo=moving, limit_s=0.0).conclude(NODES, 101.0).key == 3


def test_a_rank_that_never_began_is_blamed_first():
    """On its node; in a standstill it is listed."""
    late = view(missing=[4, 5])
    found = inquiry(anna=ANNA, bert=BERT, cleo=late).conclude(NODES, 101.0)
    assert (found.key, found.failure["headline"]) == (3, "hangs: the reason; it never started")
    told = inquiry(anna=ANNA, bert=BERT, cleo=late, final=False).conclude(NODES, 101.0)
    assert "look at rank 3 on node bert: the others wait for it in a collective" in told.line
    assert "---- rank 4-5 has not started" in told.text


def test_no_ranks_no_blame():
    """All of them have ended meanwhile."""
    assert inquiry(anna=view(), bert=view(), cleo=view()).conclude(NODES, 101.0) == Verdict(key=1)


def test_sightings_travel_whole_or_shortened():
    """What arrives is what was sent; of many deep stacks the innermost part goes."""
    seen = Sighting(rank=3, epoch=1, step=None, stacks=COLLECTIVE, groups=[{"calls": [1]}], frozen="stopped")
    assert sighting_from(seen.to_dict()) == seen
    assert shortened([seen]) == [seen]
    many = [Sighting(rank=rank, stacks=COLLECTIVE * 1000, groups=[{"calls": "x" * 99999}]) for rank in range(64)]
    assert sum(len(str(one.to_dict())) for one in shortened(many)) < 200_000
    assert all(one.stacks.startswith(COLLECTIVE) for one in shortened(many))


@pytest.mark.parametrize("change", [{"state": "a word"}, {"rank": None}, {"groups": 3}, {"quiet_s": "x"}])
def test_what_is_no_sighting_is_refused(change):
    """It comes from another machine."""
    with pytest.raises((TypeError, ValueError)):
        sighting_from(Sighting(rank=0).to_dict() | change)
