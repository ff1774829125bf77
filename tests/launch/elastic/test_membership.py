"""What is decided when nodes join, leave, fail and end, in any order."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.elastic.membership import Done, Member, Membership
from rankwise.launch.elastic.nodes import Nodes


class Run:
    """A membership with a clock, nodes that obey, and what they were told."""

    def __init__(self, least, most, *, max_restarts=0, others_may_host=False, join_timeout_s=300.0):
        hosts = ("a", "b") if others_may_host else ("a",)
        nodes = Nodes(min_nodes=least, max_nodes=most, rendezvous=hosts, join_timeout_s=join_timeout_s)
        self.state = Membership(nodes=nodes, max_restarts=max_restarts, begun_s=0.0)
        self.now, self.seen, self.next_key = 0.0, [], 0

    def note(self, actions):
        self.seen += actions
        return actions

    def join(self, num_ranks=1, wish=None):
        key = self.next_key
        self.next_key += 1
        member = Member(
            key=key,
            name=f"n{key}",
            address=f"10.0.0.{key}",
            num_ranks=num_ranks,
            wanted_rank=wish,
            port=1000 + key,
            home=key == 0,
        )
        self.note(self.state.join(member, self.now))
        return key

    def wait(self, seconds):
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.note(self.state.tick(self.now))

    def done(self, key, status="ended", **fields):
        fields = {"failed_s": self.now} | fields
        self.note(self.state.done(key, Done(status=status, **fields), 2000 + key, self.now))

    def gone(self, key, silent=False):
        self.note(self.state.gone(key, "gone", self.now, silent=silent))

    def of(self, kind):
        """The messages of a kind, with the keys of the nodes that they are for."""
        return [
            SimpleNamespace(**order.message, keys=order.keys) for order in self.seen if order.message["kind"] == kind
        ]

    def rounds(self):
        """The starts of each round, by node."""
        starts = self.of("start")
        return [[start for start in starts if start.round == number] for number in sorted({s.round for s in starts})]

    def placed(self):
        return [start.keys[0] for start in self.rounds()[-1]]


def test_a_fixed_number_starts_once_all_are_there_and_ends_well():
    """Two nodes with two ranks and one: first ranks 0 and 2; the run ends when both have."""
    run = Run(2, 2)
    first = run.join(num_ranks=2)
    run.wait(2)
    assert not run.of("start")
    second = run.join()
    assert run.placed() == [first, second]
    assert [run.state.members[key].first_rank for key in (first, second)] == [0, 2]
    run.done(second)
    assert not run.of("end")
    run.done(first)
    assert [(end.exitcode, end.again, end.signal, end.line) for end in run.of("end")] == [(0, False, None, "")]


def test_wishes_decide_the_order_and_are_given_once():
    """Node ranks that are asked for are kept; a second node with the same one waits until the first has gone."""
    run = Run(2, 2, max_restarts=1)
    one = run.join(wish=1)
    twin = run.join(wish=1)
    run.wait(4)
    assert not run.of("start")
    zero = run.join(wish=0)
    assert run.placed() == [zero, one]
    run.gone(one)
    run.done(zero, "stopped")
    assert run.placed() == [zero, twin]


def test_the_root_cause_of_all_nodes_is_told():
    """A consequence that is reported first does not hide the cause; restarts are counted over all nodes."""
    run = Run(2, 2, max_restarts=1)
    keys = run.join(), run.join()
    for attempt in (1, 2):
        run.note(run.state.ending(keys[1], None, run.now))
        run.done(keys[1], "failed", rank=1, headline="raised ConnectionError", suspicion=2, exitcode=1)
        run.wait(1)
        run.done(keys[0], "failed", rank=0, headline="raised ValueError: x", suspicion=0, exitcode=3)
        assert run.of("report")[-1].keys == (keys[0],)
        assert "rank 0 on node n0 (10.0.0.0) raised ValueError: x" in run.of("report")[-1].line
        assert len(run.rounds()) == 2 or attempt == 2
    assert run.of("end")[0].exitcode == 3


def test_a_consequence_waits_for_its_cause():
    """A node that lost its peers does not end the others before they can say why; a cause ends them at once."""
    run = Run(3, 3)
    keys = [run.join() for _ in range(3)]
    run.done(keys[0], "failed", rank=0, headline="raised ConnectionError", suspicion=2, exitcode=1)
    run.wait(4)
    assert not run.of("stop")
    run.done(keys[2], "failed", rank=2, headline="hangs", suspicion=0, exitcode=1)
    assert [stop.keys for stop in run.of("stop")] == [(keys[1],)]
    run.done(keys[1], "stopped")
    assert [report.keys for report in run.of("report")] == [(keys[2],)]


def test_a_consequence_without_a_cause_ends_the_round():
    """After some seconds, or once it is known whether a rank holds up all others."""
    for held_s, patience_s in ((0.0, 6.0), (15.0, 16.0)):
        run = Run(2, 2)
        keys = [run.join() for _ in range(2)]
        run.state.held_until_s = run.now + held_s
        run.done(keys[0], "failed", rank=0, headline="raised ConnectionError", suspicion=2, exitcode=1)
        run.wait(patience_s - 2)
        assert not run.of("stop")
        run.wait(2)
        assert [stop.keys for stop in run.of("stop")] == [(keys[1],)]
        run.done(keys[1], "stopped")
        assert [end.rank for end in run.of("end")] == [0]


def test_a_lost_node_of_a_fixed_number_is_replaced_or_named():
    """Without restarts the run ends naming it; with one it waits for another node, and not for ever."""
    for restarts, comes in ((0, False), (1, True), (1, False)):
        run = Run(2, 2, max_restarts=restarts, join_timeout_s=30)
        keys = run.join(), run.join()
        run.gone(keys[1])
        assert (run.of("stop")[-1].in_peace, run.of("stop")[-1].keys) == (False, (keys[0],))
        run.done(keys[0], "stopped")
        if comes:
            newcomer = run.join()
            assert run.placed() == [keys[0], newcomer]
        else:
            run.wait(31)
            assert "n1 (10.0.0.1)" in run.of("end")[0].line
            assert run.of("end")[0].exitcode == 1
        records = [(record.keys, record.line) for record in run.of("record")]
        assert records[0] == ((keys[0],), "node n1 (10.0.0.1) was lost"), "the node of the rendezvous records it"


def test_a_replacement_may_come_before_the_loss_is_noticed():
    """It waits while all places are taken, and has one as soon as the dead node is given up."""
    run = Run(2, 2, max_restarts=1)
    keys = run.join(), run.join()
    newcomer = run.join()
    assert "waits" in run.of("say")[-1].text
    run.wait(8)
    run.gone(keys[1], silent=True)
    run.done(keys[0], "stopped")
    assert run.placed() == [keys[0], newcomer]


def test_an_elastic_run_goes_on_with_fewer_and_grows_again():
    """1 to 3 nodes: a loss counts as no failure; who comes while the ranks run lets them save first."""
    run = Run(1, 3)
    keys = run.join(), run.join()
    run.wait(6)
    assert run.placed() == [*keys]
    run.gone(keys[0])
    run.done(keys[1], "stopped")
    run.wait(3)
    assert run.placed() == [keys[1]]
    newcomer = run.join()
    run.wait(3)
    assert (run.of("stop")[-1].in_peace, run.of("stop")[-1].keys) == (True, (keys[1],))
    run.done(keys[1], "again")
    run.wait(3)
    assert run.placed() == [keys[1], newcomer]
    assert not run.of("end")
    assert run.state.failures == 0


def test_a_signal_to_one_node_ends_all_in_peace():
    """All are asked to save; the run ends as one that is to be continued."""
    run = Run(2, 2)
    keys = run.join(), run.join()
    run.note(run.state.ending(keys[0], 15, run.now))
    assert run.of("stop")[-1].in_peace
    for key in keys:
        run.done(key, "again")
    assert [(end.exitcode, end.again, end.signal) for end in run.of("end")] == [(0, True, 15)]


def test_a_minority_behind_a_cut_link_does_not_go_on():
    """Where another host may take over, only one part of a cut network goes on; deaths do not count as cuts."""
    for silent in (True, False):
        run = Run(1, 3, others_may_host=True)
        keys = [run.join() for _ in range(3)]
        for key in keys[1:]:
            run.gone(key, silent=silent)
        run.done(keys[0], "stopped")
        run.wait(3)
        assert bool(run.of("end")) == silent
        assert len(run.rounds()) == (1 if silent else 2)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "gone", "ended", "failed", "again", "stopped", "signal", "wait"]), st.integers(0, 5)
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_any_order_of_events_keeps_the_rules(events, least, more, restarts, others):
    """Rounds never overlap nor exceed their limits, ranks are numbered without gaps, and at most one end is told."""
    run = Run(least, least + more, max_restarts=restarts, join_timeout_s=60, others_may_host=others)
    for what, which in events:
        alive = sorted(run.state.members)
        key = alive[which % len(alive)] if alive else None
        before = run.state.phase
        begun = len(run.rounds())
        if what == "join":
            run.join(num_ranks=which + 1)
        elif what == "wait":
            run.wait(which)
        elif key is None:
            continue
        elif what == "gone":
            run.gone(key, silent=bool(which % 2))
        elif what == "signal":
            run.note(run.state.ending(key, 15, run.now))
        elif key in run.state.round and before in {"running", "stopping"} and run.state.members[key].done is None:
            run.done(key, what, suspicion=which % 3, exitcode=1)
        if len(run.rounds()) > begun:
            check_round(run, run.rounds()[-1], least, least + more)
    assert len(run.of("end")) <= 1
    assert (run.state.phase == "over") == bool(run.of("end"))
    kinds = [order.message["kind"] for order in run.seen]
    assert "end" not in kinds or "start" not in kinds[kinds.index("end") :]
    assert run.state.failures <= restarts + 1


def check_round(run, starts, least, most):
    assert least <= len(starts) <= most
    assert {start.num_nodes for start in starts} == {len(starts)}
    first = 0
    for number, start in enumerate(starts):
        (key,) = start.keys
        assert (start.node_rank, start.first_rank, run.state.members[key].done) == (number, first, None)
        first += run.state.members[key].num_ranks
    assert {start.world_size for start in starts} == {first}
    assert starts[0].round == len(run.rounds()) - 1


def test_a_round_is_stopped_once():
    """Each word of a failure that comes later does not stop it again: nodes would give their ranks time anew."""
    run = Run(2, 2)
    keys = run.join(), run.join()
    run.note(run.state.ending(keys[0], 15, run.now))
    for _ in range(3):
        run.note(run.state.ending(keys[1], None, run.now))
    assert [stop.in_peace for stop in run.of("stop")] == [True, False]
