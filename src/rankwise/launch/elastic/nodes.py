"""The settings with which several nodes find each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["DEFAULT_PORT", "Nodes", "parse_nodes"]

DEFAULT_PORT = 29400
_STATIC_PORT = 29500  # torchrun's, of --master-port
_ENDPOINT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\[\]:]+)(:(?P<port>\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The nodes of one launch; every node uses the same values.

    Attributes:
        min_nodes: minimum number of nodes of a round.
        max_nodes: maximum number of nodes of a round; if equal, the number is fixed.
        rendezvous: hosts that may hold the rendezvous, in this order.
        port: port of the rendezvous on each of them.
        node_rank: requested rank of this node; None: in the order of joining. Set on all nodes or on none.
        token_file: file with the shared token; None: RANKWISE_TOKEN, else the user's own file.
        join_timeout_s: how long nodes wait for each other, at the start and for the replacement of a lost node.
        nproc: the option for the number of ranks per node as written, the same on all nodes.
        name: distinguishes runs that use the same endpoint.

    Raises:
        ConfigError: a value is invalid.
    """

    min_nodes: int
    max_nodes: int
    rendezvous: tuple[str, ...]
    port: int = DEFAULT_PORT
    node_rank: int | None = None
    token_file: Path | None = None
    join_timeout_s: float = 300.0
    nproc: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ConfigError(f"--nnodes must be 1 <= MIN <= MAX, got {self.min_nodes}:{self.max_nodes}")
        if not self.rendezvous:
            raise ConfigError("several nodes need a rendezvous: give --rdzv HOST:PORT, the same on all nodes")
        if not 0 < self.port < 1 << 16:
            raise ConfigError(f"the port of --rdzv must be between 1 and 65535, got {self.port}")
        if self.node_rank is not None and not 0 <= self.node_rank < self.max_nodes:
            raise ConfigError(f"--node-rank must be between 0 and {self.max_nodes - 1}, got {self.node_rank}")
        if not self.join_timeout_s > 0:
            raise ConfigError(f"--join-timeout must be positive, got {self.join_timeout_s:g}")

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.min_nodes < self.max_nodes


def parse_nodes(
    nnodes: str,
    *,
    rdzv: str | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    token_file: Path | None = None,
    join_timeout_s: float = 300.0,
    nproc: str = "",
    name: str = "",
) -> Nodes | None:
    """Parse the command line options; return None if they describe one machine.

    Args:
        nnodes: "N" or "MIN:MAX".
        rdzv: "HOST[,HOST ...][:PORT]".
        node_rank: as `Nodes`.
        master_addr: torchrun's static alternative to `rdzv`, together with `master_port`.
        master_port: default 29500.
        token_file: as `Nodes`.
        join_timeout_s: as `Nodes`.
        nproc: as `Nodes`.
        name: as `Nodes`.

    Raises:
        ConfigError: the options are invalid or contradict each other.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    if match is None:
        raise ConfigError(f"--nnodes must be a number or MIN:MAX, got {nnodes!r}")
    least, most = int(match[1]), int(match[2] or match[1])
    if (least, most) == (1, 1):
        if rdzv is not None:
            raise ConfigError(
                f"--rdzv {rdzv} is only valid with several nodes: set their number with --nnodes N or MIN:MAX"
            )
        if node_rank not in {None, 0}:
            raise ConfigError(
                f"--node-rank {node_rank} is only valid with several nodes: set their number with --nnodes N"
            )
        return None
    if rdzv is None and master_addr is not None:
        rdzv = f"{master_addr}:{master_port or _STATIC_PORT}"
    hosts, port = _endpoints(rdzv or "")
    return Nodes(
        min_nodes=least,
        max_nodes=most,
        rendezvous=hosts,
        port=port,
        node_rank=node_rank,
        token_file=token_file,
        join_timeout_s=join_timeout_s,
        nproc=nproc,
        name=name,
    )


def _endpoints(text: str) -> tuple[tuple[str, ...], int]:
    hosts, ports = [], set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.fullmatch(word)
        if match is None:
            raise ConfigError(f"--rdzv must be HOST[,HOST ...][:PORT] (IPv6 addresses in brackets), got {text!r}")
        hosts.append(match["host"].strip("[]"))
        if match["port"]:
            ports.add(int(match["port"]))
    if len(ports) > 1:
        raise ConfigError(f"--rdzv must have one port for all hosts, got {text!r}")
    return tuple(dict.fromkeys(hosts)), ports.pop() if ports else DEFAULT_PORT
