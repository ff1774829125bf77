"""Two and three hosts: what becomes of a run when ranks, nodes, links or the rendezvous die."""

import json
import os
import re
import signal

FIXED = ("--nproc", "1", "--nnodes", "2", "--rdzv", "anna")
ELASTIC = ("--nproc", "1", "--nnodes", "1:3", "--rdzv", "anna,bert,cleo")


def test_worker_killed_then_node_killed_then_replaced(nodes):
    """Two fixed nodes: a killed rank is replaced, a killed node's place is taken by another one; all end together."""
    options = (*FIXED, "--max-restarts", "2", "--run-dir", nodes.folder / "run")
    for host in ("anna", "bert"):
        nodes.start(host, *options)
    events, _ = nodes.training(2)
    assert [(event["rank"], event["local"], event["node"]) for event in events] == [(0, 0, 0), (1, 0, 1)]
    assert len({event["secret"] for event in events}) == 1
    assert not any(event["token"] for event in events)
    os.kill(events[1]["pid"], signal.SIGKILL)
    nodes.training(2, beyond=0)
    name = events[1]["host"]
    nodes.says(name, "was ended by SIGKILL")
    nodes.says("anna" if name == "bert" else "bert", f"rank 1 on node {name}")
    nodes.kill_node("bert")
    nodes.says("anna", "node bert (10.77.0.2) is lost: its supervisor has ended")
    nodes.start("cleo", *options)
    nodes.training(2, beyond=1)
    nodes.enough()
    assert [nodes.ends("anna"), nodes.ends("cleo")] == [0, 0], nodes.all_consoles()
    assert len(nodes.events("ended")) == 2
    failure, loss = json.loads((nodes.folder / "run" / "failure.json").read_text())["failures"]
    assert (failure["rank"], failure["signal"], failure["attempt"], failure["world_size"]) == (1, "SIGKILL", 0, 2)
    assert (failure["host"], failure["step"] is not None) == (name, True)
    assert re.match(r"node bert \(10\.77\.0\.\d\) was lost", loss["cause"])
    assert loss["attempt"] == 1
    assert sorted(p.name for p in (nodes.folder / "run" / "logs").iterdir()) == ["anna", "bert", "cleo"]
    assert not list((nodes.folder / "tmp").iterdir())


def test_elastic_nodes_come_and_go(nodes):
    """1 to 3 nodes: a killed one is gone on without, one that comes is taken in, and SIGTERM to one saves on all."""
    nodes.start("anna", *ELASTIC)
    nodes.start("bert", *ELASTIC)
    events, _ = nodes.training(2)
    victim = next(event for event in events if event["host"] == "bert")
    os.kill(victim["parent"], signal.SIGKILL)
    nodes.until(lambda: not nodes.alive(victim["pid"]), "the pact between supervisor and rank")
    events, _ = nodes.training(1, beyond=events[0]["attempt"])
    nodes.start("cleo", *ELASTIC)
    nodes.training(2, beyond=events[0]["attempt"])
    assert nodes.events("saved"), "the ranks were not let save before the new node came"
    begun = len(nodes.events("saved"))
    nodes.started["cleo"].send_signal(signal.SIGTERM)
    assert [nodes.ends("anna"), nodes.ends("cleo")] == [75, 75], nodes.all_consoles()
    assert len(nodes.events("saved")) == begun + 2


def test_the_rendezvous_dies_and_the_rest_go_on_elsewhere(nodes):
    """Three nodes: the next host of the list takes over, and the first one joins it when it comes back."""
    for host in nodes.lab.names:
        nodes.start(host, *ELASTIC)
    events, _ = nodes.training(3)
    nodes.kill_node("anna")
    events, _ = nodes.training(2, beyond=events[0]["attempt"])
    nodes.says("cleo", "the rendezvous at anna is lost: its supervisor has ended")
    nodes.start("anna", *ELASTIC)
    nodes.training(3, beyond=events[0]["attempt"])


def test_a_cut_link_is_said_on_both_sides(nodes):
    """Silence is a loss, named on both sides; a replacement that came before it was noticed takes the place."""
    options = (*FIXED, "--max-restarts", "1")
    for host in ("anna", "bert"):
        nodes.start(host, *options)
    nodes.training(2)
    nodes.lab.cut("bert")
    nodes.start("cleo", *options)
    nodes.says("anna", "node bert (10.77.0.2) is lost: nothing heard from it")
    nodes.says("bert", "the rendezvous at anna is lost: nothing heard from it")
    assert nodes.ends("bert") == 1
    events, _ = nodes.training(2, beyond=0)
    assert {event["host"] for event in events} == {"anna", "cleo"}


def test_a_node_that_was_cut_off_comes_back_when_the_link_is_mended(nodes):
    """One to three nodes, three hosts: the cut off one trains nothing on its own, and joins the others again."""
    for host in nodes.lab.names:
        nodes.start(host, *ELASTIC)
    events, _ = nodes.training(3)
    whole = events[0]["attempt"]  # before it a node may have begun alone, where the others were late
    nodes.lab.cut("bert")
    nodes.training(2, beyond=whole)
    nodes.says("bert", "2 of the last round must be here, because the others may continue behind a cut link")
    assert not alone_after(nodes, whole), nodes.all_consoles()
    nodes.lab.restore("bert")
    nodes.training(3, beyond=whole)
    nodes.says("bert", "the run continues at the rendezvous of anna")
    assert not alone_after(nodes, whole), nodes.all_consoles()


def alone_after(nodes, attempt):
    return [event for event in nodes.events() if event["size"] == 1 and event["attempt"] > attempt]


def test_the_link_of_the_rendezvous_is_cut_and_the_rest_go_on_elsewhere(nodes):
    """Three nodes: the two that are left meet at the next host; the first, alone with its rendezvous, ends itself."""
    for host in nodes.lab.names:
        nodes.start(host, *ELASTIC)
    events, _ = nodes.training(3)
    nodes.lab.cut("anna")
    began, _ = nodes.training(2, beyond=events[0]["attempt"])
    assert {event["host"] for event in began} == {"bert", "cleo"}
    for host in ("bert", "cleo"):
        nodes.says(host, "the rendezvous at anna is lost: nothing heard from it for 10 s")
    assert nodes.ends("anna") == 1
    nodes.says("anna", "the 1 nodes here may be a cut-off minority of 3, which must not continue")


def test_a_failure_is_told_where_it_happened_and_at_the_rendezvous(nodes):
    """The traceback of the root cause, with host and global rank; one line on the third node; one exit code."""
    hosts, static = nodes.lab.names, ("--master-addr", "anna", "--master-port", "29500")
    for number, host in reversed(list(enumerate(hosts))):
        nodes.start(host, "--nproc", "1", "--nnodes", "3", *static, "--node-rank", number)
    events, _ = nodes.training(3)
    assert [event["host"] for event in events] == list(hosts)
    (nodes.folder / "fail-1").touch()
    assert [nodes.ends(host) for host in hosts] == [1, 1, 1], nodes.all_consoles()
    line, traceback = "rank 1 on node bert (10.77.0.2) raised ValueError: planted on rank 1", "Traceback (most recent"
    assert nodes.console("anna").count(line) == 1
    assert nodes.console("cleo").count(line) == 1
    assert "rank 1 of 3 on bert raised ValueError: planted on rank 1" in nodes.console("bert")
    assert [nodes.console(host).count(traceback) for host in hosts] == [1, 1, 0], nodes.all_consoles()
