"""The settings with which several nodes find each other, the token that all know, and what must be the same on all."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._files import user_folder
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.launch.target import Target

DEFAULT_PORT = 29400
_STATIC_PORT = 29500  # torchrun's, of --master-port
_ENDPOINT = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\[\]:]+)(:(?P<port>\d+))?")
_VARIABLE = "RANKWISE_TOKEN"
_LEAST_CHARACTERS = 16


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
    **fields: Any,
) -> Nodes | None:
    """Parse the command line options; return None if they describe one machine.

    Args:
        nnodes: "N" or "MIN:MAX".
        rdzv: "HOST[,HOST ...][:PORT]".
        node_rank: as `Nodes`.
        master_addr: torchrun's static alternative to `rdzv`, together with `master_port`.
        master_port: default 29500.
        **fields: further fields of `Nodes`.

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
        host = f"[{master_addr}]" if ":" in master_addr and not master_addr.startswith("[") else master_addr
        rdzv = f"{host}:{master_port or _STATIC_PORT}"
    hosts, port = _endpoints(rdzv or "")
    return Nodes(min_nodes=least, max_nodes=most, rendezvous=hosts, port=port, node_rank=node_rank, **fields)


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


def describe_node(target: Target, nodes: Nodes, *, max_restarts: int) -> dict[str, str]:
    """Return the properties of a node that must be the same on all nodes, by name."""
    import contextlib
    import importlib.metadata
    import platform

    from rankwise._version import __version__

    torch = "not installed"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch").partition("+")[0]
    wishes = "given" if nodes.node_rank is not None else "not given"
    return {
        "rankwise": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch,
        "the target": f"{target.kind} {Path(target.name).name if target.kind == 'script' else target.name}",
        "the code of the target": _code(target),
        "--nproc": nodes.nproc,
        "--nnodes": f"{nodes.min_nodes}:{nodes.max_nodes}",
        "--node-rank": wishes,
        "--max-restarts": str(max_restarts),
        "--rdzv-id": nodes.name,
    }


def difference(name: str, mine: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> str:
    """Return a text about the properties that differ between two nodes, "" if none do."""
    words = []
    for what in sorted(mine.keys() | theirs.keys()):
        one, two = (side.get(what) or "none" for side in (mine, theirs))
        if one != two:
            words.append(f"{what} is {one} on {name} and {two} on {other}")
    return "; ".join(words)


def _code(target: Target) -> str:
    """Return a short hash of the file that the ranks will run, "" if there is no such file."""
    import hashlib
    from importlib.machinery import PathFinder

    path, spec, where = Path(target.name), None, None
    if target.kind != "script":
        # a module is found part by part, without the import of its parent packages, which may need torch
        for part in target.name.partition(":")[0].split("."):
            spec = PathFinder.find_spec(part, where)
            if spec is None:
                return ""
            where = list(spec.submodule_search_locations or [])
        if spec is None or not spec.origin:
            return ""
        path = Path(spec.origin)
    path = path / "__main__.py" if path.is_dir() else path
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def derived_secret(token: str, purpose: str) -> str:
    """Return a secret for one purpose, from which the token cannot be derived."""
    return hmac.new(token.encode(), f"rankwise secret {purpose}".encode(), "sha256").hexdigest()[:32]


def read_token(path: Path | None) -> tuple[str, str]:
    """Return the token of this user's jobs, and its source.

    It comes from the given file, else from RANKWISE_TOKEN, else from the user's own file, which is created if missing.
    With a home folder on shared storage, all nodes have this file.

    Raises:
        ConfigError: the token is too short, or other users may read its file.
    """
    text = os.environ.get(_VARIABLE, "")
    if path is None and text:
        return _checked(text, _VARIABLE), _VARIABLE
    try:
        if path is None:
            path = _own_file()
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"other users can read the token in {path}: chmod 600 {path}, or create a new one")
        return _checked(path.read_text(), str(path)), str(path)
    except OSError as error:
        raise ConfigError(
            f"no token for the rendezvous: {error.filename}: {error.strerror}; set {_VARIABLE}"
        ) from error


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if len(token) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"the token of {source} has {len(token)} characters, at least {_LEAST_CHARACTERS} are required: "
            'python -c "import secrets; print(secrets.token_hex(16))"'
        )
    return token


def _own_file() -> Path:
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    path = folder / "token"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".token-{secrets.token_hex(8)}"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16) + "\n")
        # atomic, so that only one node creates it in a shared home folder
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
    return path
