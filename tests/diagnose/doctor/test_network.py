"""`rankwise doctor` on several hosts: what lies between them is found and told apart, by ranks on real networks."""

import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

from rankwise.diagnose.doctor import Check
from rankwise.diagnose.doctor.network import (
    check_clocks,
    check_pairs,
    data_addresses,
    listening,
    probe_listener,
    reach,
    read_banner,
)
from rankwise.testing.hosts import HostLab

SECONDS = 300
NAMES = ("anna", "bert", "cleo")
PORT = 29555
SSH = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
while True:
    made, _ = server.accept()
    made.sendall(b"SSH-2.0-OpenSSH_9.2\\r\\n")
"""


@pytest.fixture(scope="module")
def lab():
    """Three hosts on one network."""
    if obstacle := HostLab.obstacle():
        pytest.skip(obstacle)
    with HostLab(NAMES) as made:
        yield made


def ip(lab, host, *words):
    subprocess.run(["ip", "-n", lab.space(host), *words], check=True, timeout=60)


def examine(lab, folder, seconds, *, addresses=None, hosts=NAMES, variables=None):
    """Start a rank of one job on each host, as a launcher that only sets variables; return the checks of each."""
    started = []
    for rank, host in enumerate(hosts):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWISE_", "GLOO_", "NCCL_"))}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
        env |= {"MASTER_ADDR": (addresses or {}).get(host, "anna"), "MASTER_PORT": str(PORT), **(variables or {})}
        words = [sys.executable, "-m", "rankwise", "doctor", "--json", "--timeout", str(seconds)]
        started.append(lab.start(host, *words, env=env, cwd=folder, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=SECONDS)[0] for process in started]
    return [[Check(**fields) for fields in json.loads(text)] if text else [] for text in said]


def of(checks, name):
    (found,) = [check for check in checks if check.name == name]
    return found


def test_hosts_that_reach_each_other(lab, tmp_path):
    """Two hosts, with the variables of our launcher: one report, every way open, clocks compared, the group works."""
    words = [sys.executable, "-m", "rankwise", "run", "--nnodes", "2", "--rdzv", "anna:29700", "--nproc", "1", "-m"]
    env = {**os.environ, "RANKWISE_TOKEN": "a token that the tests have made", "OMP_NUM_THREADS": "1"}
    started = [
        lab.start(host, *words, "rankwise", "doctor", env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for host in NAMES[:2]
    ]
    main, *others = [process.communicate(timeout=SECONDS)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], main
    assert not [text for text in others if "every pair of hosts" in text]
    assert "2 connections between 2 hosts work" in main
    for name in ("every pair of hosts", "clocks", "same versions", "collectives"):
        assert re.search(rf"\bpass +{name}", main), main
    assert not re.search(r"^\W*fail ", main, re.MULTILINE), main


def test_two_hosts_that_do_not_reach_each_other(lab, tmp_path):
    """Both reach the rendezvous, not each other; rank 0's report says which, and no group is waited for."""
    for here, there in (("bert", "cleo"), ("cleo", "bert")):
        ip(lab, here, "route", "add", "blackhole", f"{lab.address(there)}/32")
    try:
        main, *_ = examine(lab, tmp_path, 200)
    finally:
        for here, there in (("bert", "cleo"), ("cleo", "bert")):
            ip(lab, here, "route", "del", "blackhole", f"{lab.address(there)}/32")
    failures = {check.name: check for check in main if check.status == "fail"}
    assert set(failures) == {"bert to cleo", "cleo to bert"}
    assert of(main, "collectives").status == "not run"
    assert of(main, "same versions").status == "pass"


def test_a_wrong_name_a_blocked_port_and_nobody(lab, tmp_path):
    """A rank that cannot come says so itself, each with its cause; rank 0 names those who are missing."""
    ip(lab, "anna", "rule", "add", "from", lab.address("anna"), "ipproto", "tcp", "sport", str(PORT), "blackhole")
    try:
        main, blocked, lost = examine(lab, tmp_path, 6, addresses={"cleo": "anne"})
    finally:
        ip(lab, "anna", "rule", "del", "ipproto", "tcp", "sport", str(PORT))
    assert "missing: rank 1, 2" in of(main, "all ranks meet").evidence
    assert "filtered" in of(blocked, "rendezvous").evidence
    assert "rank 1 on bert" in of(blocked, "rendezvous").evidence
    assert "anne cannot be resolved" in of(lost, "rendezvous").evidence
    (refused,) = examine(lab, tmp_path, 3, hosts=["bert"], variables={"RANK": "1", "WORLD_SIZE": "2"})
    assert "refuses" in of(refused, "rendezvous").evidence


def test_another_service_has_the_port(lab, tmp_path):
    """Who holds the rendezvous' port is no store: rank 0 cannot serve, the others are told what answers."""
    words = [sys.executable, "-c", SSH, lab.address("anna"), PORT]
    server = lab.start("anna", *words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "listens\n"
        main, other = examine(lab, tmp_path, 20, hosts=["anna", "bert"])
    finally:
        server.kill()
    assert f"cannot serve anna:{PORT}" in of(main, "rendezvous").evidence
    assert "another service answers" in of(other, "rendezvous").evidence
    assert "SSH-2.0" in of(other, "rendezvous").evidence


def test_what_a_connection_says():
    """Refusal, unknown name, our own listener with its clock, and a service that is not ours."""
    with listening("127.0.0.1") as (port, token):
        assert reach("127.0.0.1", port, 20).kind == "answers"
        seen = probe_listener("127.0.0.1", port, token, 20)
        assert seen.kind == "answers"
        assert abs(seen.offset_s) <= seen.error_s + 0.01
        assert probe_listener("127.0.0.1", port, "other", 20).kind == "another"
    assert reach("127.0.0.1", port, 20).kind == "refused"
    assert reach("no-such-host.invalid", port, 20).kind == "name"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            for _ in range(2):
                made, _ = server.accept()
                with made:
                    made.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        port = server.getsockname()[1]
        assert read_banner("127.0.0.1", port, 20) == "220 mail ready"
        assert probe_listener("127.0.0.1", port, "token", 20).kind == "another"
        thread.join()


def card(host, **more):
    return {"host": host, "boot": "1", "net": host, "interface": "", "listeners": [{"who": "gloo"}], **more}


def test_pairs_and_clocks_are_judged():
    """A loopback address is no way for others; a clock that is surely off is a warning, one that may be is none."""
    cards = [card("a"), card("b"), card("b")]
    good = {"to": 1, "kind": "answers", "text": "", "offset_s": 3.0, "error_s": 0.01}
    loopback = {"to": 0, "kind": "loopback", "text": "a listens on 127.0.0.1"}
    (name,) = [check for check in check_pairs(cards, {0: [good], 1: [loopback]}) if check.status == "fail"]
    assert (name.name, "GLOO_SOCKET_IFNAME" in name.mend) == ("b to a", True)
    clocks = check_clocks(cards, {0: [good]})
    assert (clocks.status, "b is +3.000 s from a" in clocks.evidence) == ("warn", True)
    assert check_clocks(cards, {0: [good | {"error_s": 2.5}]}).status == "pass"
    assert check_pairs([card("a"), card("a")], {})[0].status == "not run"
    assert data_addresses({"GLOO_SOCKET_IFNAME": "lo"}) == {"gloo on lo": "127.0.0.1"}
