"""Ranks of two hosts wait for one of a third: no node can see that alone, and all of them say it."""

import re

THREE = ("--nproc", "1", "--nnodes", "3", "--rdzv", "anna")
# rank 2 is told to do something else than the others, and goes on when the test has seen enough of the first standstill
WAITS = """
import datetime, os, time
import torch, torch.distributed as dist
import rankwise
from rankwise import vitals

def prepares_for_ever(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not os.path.exists("go-on"):
        time.sleep(0.05)

with rankwise.bind(device="cpu", timeout=280) as world:
    impatient = dist.new_group()  # of which the ranks are waited for as long as a busy machine needs
    for step in range(3):
        vitals.beat(epoch=0, step=step, phase="train")
        dist.all_reduce(torch.ones(1))
    if world.rank == 2:
        prepares_for_ever(1000)
    dist.all_reduce(torch.ones(1))
    vitals.beat(epoch=0, step=3, phase="train")
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=8), impatient)
    if world.rank == 2:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1), group=impatient)
"""
# without torch: code that looks like torch's from outside
BEATS = """
import os, time
from rankwise import vitals

def forgets_the_others():
    time.sleep(1000)

vitals.beat(epoch=1, step=7)
if os.environ["RANK"] == "1":
    forgets_the_others()
exec(compile("import time; time.sleep(1000)", "/site/torch/distributed/distributed_c10d.py", "exec"))
"""


def start(nodes, text, *options):
    script = nodes.folder / "waits.py"
    script.write_text(text)
    for host in nodes.lab.names:
        nodes.start(host, *THREE, *options, script=script)
    # rank 0 is at the rendezvous, the others come in any order
    return nodes.lab.names


def test_a_standstill_of_all_nodes_is_told_with_the_rank_that_causes_it(nodes):
    """`--stall`: the rank, its node and its function on all consoles, then its end; later who was waited for in vain.

    All stacks are told at the rendezvous and where the rank is, on the third node one line.
    """
    hosts = start(nodes, WAITS, "--stall", "4")
    line = re.compile(
        r"no rank has advanced for \d+ s \(--stall\), the run continues; look at rank 2 on node (\w+): "
        "rank 2 has not joined"
    )
    nodes.until(lambda: line.search(nodes.console("anna")), nodes.all_consoles)
    guilty = line.search(nodes.console("anna"))[1]
    other = next(host for host in hosts if host not in {"anna", guilty})
    nodes.until(lambda: line.search(nodes.console(guilty)) and line.search(nodes.console(other)), nodes.all_consoles)
    for host, whole in (("anna", True), (guilty, True), (other, False)):
        assert ("---- rank 2: epoch 0, step 2" in nodes.console(host)) == whole, nodes.all_consoles()
        assert not re.search(r"look at rank [01] [^\n]*wait for it", nodes.console(host)), nodes.all_consoles()
    (nodes.folder / "go-on").touch()
    for host in hosts:
        nodes.says(host, "the ranks advance again, after")
    assert [nodes.ends(host) for host in hosts] == [1, 1, 1], nodes.all_consoles()
    assert re.search(r"rank 2 of 3 on \w+ hangs \(.*\): rank [01] gave up waiting for it", nodes.console(guilty)), (
        nodes.all_consoles()
    )
    said = re.compile(rf"rank 2 on node {guilty} \(10\.77\.0\.\d\) hangs \(.*\): rank [01] gave up waiting for it")
    assert all(len(said.findall(nodes.console(host))) == 1 for host in ("anna", other)), nodes.all_consoles()


def test_a_hang_of_all_nodes_is_ended_with_the_rank_that_causes_it(nodes):
    """`--hang-timeout`: whichever node notices first, the run ends with the one rank that does not wait."""
    hosts = start(nodes, BEATS, "--hang-timeout", "12")
    assert [nodes.ends(host) for host in hosts] == [1, 1, 1], nodes.all_consoles()
    said = r"rank 1 on node \w+ \(10\.77\.0\.\d\) hangs \(epoch 1, step 7, at .* in forgets_the_others\): "
    reason = r"no rank has made progress for 12 s \(--hang-timeout\); the others wait for it in a collective"
    consoles = [nodes.console(host) for host in hosts]
    assert sum(bool(re.search(said + reason, text)) for text in consoles) == 2, nodes.all_consoles()
    assert sum(bool(re.search(r"rank 1 of 3 on \w+ hangs", text)) for text in consoles) == 1, nodes.all_consoles()
    assert not re.search("rank [02] (on|of)[^\n]* hangs", nodes.all_consoles())
