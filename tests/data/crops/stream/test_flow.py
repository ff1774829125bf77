"""`Flow`: who waits for whom between the threads of a stream."""

import threading

import pytest

from rankwise.data.crops.stream.flow import Flow, Starved


def flow(batch_size=3, lookahead=6, drop_last=False):
    return Flow(batch_size=batch_size, lookahead=lookahead, drop_last=drop_last)


def pull(flow, items):
    """What the puller does with a source, as one call."""
    flow.push(iter(items))
    source = flow.next_push()
    for item in source:
        assert flow.wait_for_room()
        flow.put_trouble(item) if isinstance(item, Exception) else flow.put_sample(item)


def in_thread(call):
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    return thread, got


def no_more(flow):
    """The puller finds no further source: it waits for one."""
    thread, _ = in_thread(flow.next_push)
    return thread


def test_full_groups_go_at_once():
    """A whole batch does not wait for a consumer."""
    f = flow()
    pull(f, range(4))
    assert f.take_group().items == [0, 1, 2]
    assert f.pending


def test_a_tail_goes_only_when_asked_for():
    """Samples that are no whole batch stay for later pushes, until a consumer waits and nothing follows."""
    f = flow()
    pull(f, range(2))
    planner, group = in_thread(f.take_group)
    puller = no_more(f)
    assert not group
    consumer, got = in_thread(lambda: f.take_ready(None))
    planner.join(20)
    assert group[0].items == [0, 1]
    f.put_plan("plan")
    assert f.take_plan() == "plan"
    f.put_ready("batch")
    consumer.join(20)
    assert got == ["batch"]
    assert not f.pending
    f.close()
    puller.join(20)


def test_later_pushes_complete_a_tail():
    """Two pushes chain: the second one's samples fill the batch that the first began."""
    f = flow()
    pull(f, range(2))
    pull(f, range(2, 5))
    assert f.take_group().items == [0, 1, 2]


def test_a_dropped_tail_is_said():
    """With drop_last the consumer is told at once how many samples are left, instead of waiting."""
    f = flow(drop_last=True)
    pull(f, range(2))
    puller = no_more(f)
    got = f.take_ready(20)
    assert got == Starved(drained=True, tail=2, why="")
    assert not f.pending
    f.close()
    puller.join(20)


def test_errors_travel_with_their_batch():
    """An error of a source comes with the batch that it fell into; with nothing else it comes alone."""
    f = flow()
    error = ValueError("x")
    pull(f, [0, 1, error, 2, 3])
    group = f.take_group()
    assert (group.items, group.errors) == ([0, 1, 2], [error])
    f.put_ready()
    f2 = flow()
    pull(f2, [error])
    puller = no_more(f2)
    assert f2.pending
    consumer, _ = in_thread(lambda: f2.take_ready(None))
    group = f2.take_group()
    assert (group.items, group.errors) == ([], [error])
    f2.close()
    for thread in (consumer, puller):
        thread.join(20)


def test_a_source_is_pulled_no_further_than_the_lookahead():
    """Backpressure: the puller waits while as many samples lie there as are looked ahead."""
    f = flow(batch_size=2, lookahead=2)
    pull(f, range(2))
    f.push(iter([7]))
    f.next_push()
    puller, got = in_thread(f.wait_for_room)
    assert not got
    assert not f.in_user_code
    f.take_group()
    puller.join(20)
    assert got == [True]
    assert f.in_user_code


def test_the_reason_is_told():
    """Who waits too long hears what the stream waits for."""
    f = flow()
    assert f.take_ready(0.01).drained
    f.push(iter(()))
    f.next_push()
    f.wait_for_room()
    assert "not given its next sample" in f.take_ready(0.01).why
    f.put_sample(1)
    assert "1 of the 3 samples" in f.take_ready(0.01).why
    f.put_sample(2)
    f.wait_for_room()
    f.put_sample(3)
    f.take_group()
    assert "planned" in f.take_ready(0.01).why
    f.doing("reading")
    assert f.take_ready(0.01).why == "reading"


@pytest.mark.parametrize("wait", ["next_push", "wait_for_room", "take_group", "take_plan", "put_plan", "take_ready"])
def test_closing_wakes_everybody(wait):
    """Nobody hangs at the end, and nothing is taken any more."""
    f = flow(batch_size=1, lookahead=1)
    if wait == "wait_for_room":
        pull(f, [0])
    if wait == "put_plan":
        f.put_plan(0)
        f.put_plan(1)
    if wait == "take_ready":
        f.push(iter(()))
    arguments = {"put_plan": (2,), "take_ready": (None,)}.get(wait, ())
    thread, got = in_thread(lambda: getattr(f, wait)(*arguments))
    f.close()
    thread.join(20)
    assert not got[0]
    assert f.closed
    assert not f.push(iter(()))
    f.put_sample(1)
    f.put_ready("late")
    assert f.take_ready(None) is None
