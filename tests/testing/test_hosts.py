"""Hosts in network namespaces: names, addresses, links that can be cut, and nothing left."""

import subprocess

import pytest

from rankwise.testing.hosts import HostLab

pytestmark = pytest.mark.skipif(bool(HostLab.obstacle()), reason=HostLab.obstacle() or "possible")

PING = "import socket; socket.create_connection(('{}', 9000), {}).close()"
SERVE = "import socket; s = socket.create_server(('', 9000)); print('up', flush=True); input()"


def test_hosts_have_names_and_links():
    """Two labs beside each other: hosts know their names, reach each other by name until the link is cut."""
    with HostLab(["left", "right"]) as lab, HostLab(["left", "right"]) as other:
        assert lab.run("left", "hostname").stdout == "left\n"
        server = lab.start(
            "right", "python3", "-c", SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert server.stdout.readline() == b"up\n"
        assert lab.run("left", "python3", "-c", PING.format("right", 60)).returncode == 0
        assert other.run("left", "python3", "-c", PING.format("right", 60)).returncode != 0
        lab.cut("right")
        assert lab.run("left", "python3", "-c", PING.format("right", 2)).returncode != 0
        lab.restore("right")
        assert lab.run("left", "python3", "-c", PING.format("right", 60)).returncode == 0
        spaces = {found.space(name) for found in (lab, other) for name in found.names}
        assert spaces <= set(_spaces())
    assert server.poll() is not None
    assert not spaces & set(_spaces())


def _spaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line]
