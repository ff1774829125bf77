"""Who of all nodes' ranks is blamed, from what the nodes see."""

import pytest

from rankwise.launch.elastic.server import HangDetector
from rankwise.launch.failures.observation import Observation, observation_from, shortened

COLLECTIVE = (
    'Thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line 9 in all_reduce'
)
ELSEWHERE = 'Thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 3 in load'
NODES = {1: "anna", 2: "bert", 3: "cleo"}


def view(*ranks, quiet_s=20.0, missing=(), **fields):
    found = [Observation(rank=rank, stacks=stacks, said=f"step {rank}", **fields).to_dict() for rank, stacks in ranks]
    return {"quiet_s": quiet_s, "missing": list(missing), "ranks": found}


class Inquiry:
    """A detector that anna asks at 100.0 s, and what it has told the nodes."""

    def __init__(self, *, final=True, limit_s=10.0, home=3, **views):
        self.detector, self.told = HangDetector(lambda: NODES), []
        self.detector.home = home
        question = {"final": final, "limit_s": limit_s, "reason": "the reason", **views.pop("anna")}
        self.note(self.detector.ask(1, question, 100.0))
        for key, name in NODES.items():
            if name in views:
                self.note(self.detector.note_view(key, {"inquiry": 1, **views[name]}, 101.0))

    def note(self, orders):
        self.told += [order for order in orders if order.message["kind"] != "look" and order.keys]

    def verdict(self):
        ((message, (key,)),) = self.told
        return key, message["failure"]

    def texts(self):
        return {key: order.message["text"] for order in self.told for key in order.keys}


ANNA = view((0, COLLECTIVE), (1, COLLECTIVE))
BERT = view((2, COLLECTIVE), (3, ELSEWHERE))
CLEO = view((4, COLLECTIVE), (5, COLLECTIVE))


def test_all_other_nodes_are_asked_once():
    """A second question while the first is open adds its view only; one that may end the attempt replaces another."""
    detector = HangDetector(lambda: NODES)
    question = {"final": False, "limit_s": 9.0, "reason": "", **ANNA}
    (look,) = detector.ask(1, question, 100.0)
    assert look == ({"kind": "look", "inquiry": 1, "final": False}, (2, 3))
    assert detector.ask(2, question, 100.0) == []
    (look,) = detector.ask(2, {**question, "final": True}, 100.0)
    assert look == ({"kind": "look", "inquiry": 2, "final": True}, (1, 3))
    assert detector.held_until_s == 115.0
    assert detector.note_view(3, {"inquiry": 1, **CLEO}, 101.0) == [], "the answer to the first question"


def test_the_one_that_does_not_wait_is_blamed_on_its_node():
    """Whoever asked; its place and stacks go to its own node."""
    key, failure = Inquiry(anna=ANNA, bert=BERT, cleo=CLEO).verdict()
    assert (key, failure["rank"], failure["waits"]) == (2, 3, False)
    assert failure["headline"] == (
        "hangs (step 3, at /home/me/train.py:3 in load): the reason; the others wait for it in a collective"
    )
    assert sorted(failure["places"]) == [0, 1, 2, 3, 4, 5]


def test_nothing_is_said_before_all_have_answered_or_had_their_time():
    """A node that does not answer is named, and the others are judged without it."""
    asked = Inquiry(anna=ANNA, bert=BERT)
    assert asked.told == asked.detector.conclude(114.0) == []
    asked.note(asked.detector.conclude(116.0))
    assert asked.verdict()[1]["headline"].endswith("; node cleo does not answer")


def test_nobody_is_blamed_while_a_node_advances():
    """Unless a rank has given up waiting already: then it is too late for that."""
    moving = view((4, ELSEWHERE), quiet_s=1.0)
    assert Inquiry(anna=ANNA, bert=BERT, cleo=moving).verdict() == (1, None)
    assert Inquiry(anna=ANNA, bert=BERT, cleo=moving, final=False).told == []
    assert Inquiry(anna=ANNA, bert=CLEO, cleo=moving, limit_s=0.0).verdict()[0] == 3


def test_a_rank_that_never_began_is_blamed_first():
    """On its node; in a standstill it is listed."""
    late = view(missing=[4, 5])
    key, failure = Inquiry(anna=ANNA, bert=BERT, cleo=late).verdict()
    assert (key, failure["headline"]) == (3, "hangs: the reason; it never started")
    told = Inquiry(anna=ANNA, bert=BERT, cleo=late, final=False).texts()
    assert "look at rank 3 on node bert: the others wait for it in a collective" in told[1]
    assert "---- rank 4-5 has not started" in told[2]
    assert told[2] == told[3], "the node of the rank, and the one that records it"
    assert told[1] == told[2].partition("\n")[0]


def test_no_ranks_no_blame():
    """All of them have ended meanwhile."""
    assert Inquiry(anna=view(), bert=view(), cleo=view()).verdict() == (1, None)


def test_sightings_travel_whole_or_shortened():
    """What arrives is what was sent; of many deep stacks the innermost part goes."""
    seen = Observation(rank=3, epoch=1, step=None, stacks=COLLECTIVE, groups=[{"calls": [1]}], frozen="stopped")
    assert observation_from(seen.to_dict()) == seen
    assert shortened([seen]) == [seen]
    many = [Observation(rank=rank, stacks=COLLECTIVE * 1000, groups=[{"calls": "x" * 99999}]) for rank in range(64)]
    assert sum(len(str(one.to_dict())) for one in shortened(many)) < 200_000
    assert all(one.stacks.startswith(COLLECTIVE) for one in shortened(many))


@pytest.mark.parametrize("change", [{"state": "a word"}, {"rank": None}, {"groups": 3}, {"quiet_s": "x"}])
def test_what_is_no_sighting_is_refused(change):
    """It comes from another machine."""
    with pytest.raises((TypeError, ValueError)):
        observation_from(Observation(rank=0).to_dict() | change)
