"""Describe and compare what must be the same on all nodes, without importing the program."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

from rankwise._version import __version__
from rankwise.launch.elastic.nodes import Nodes
from rankwise.launch.target import Target

__all__ = ["describe_node", "difference"]


def describe_node(target: Target, nodes: Nodes, *, max_restarts: int) -> dict[str, str]:
    """Return the properties of a node that must be the same on all nodes, by name."""
    wishes = "given" if nodes.node_rank is not None else "not given"
    return {
        "rankwise": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version("torch"),
        "the target": f"{target.kind} {Path(target.name).name if target.kind == 'script' else target.name}",
        "the code of the target": _code(target),
        "--nproc": nodes.nproc,
        "--nnodes": f"{nodes.min_nodes}:{nodes.max_nodes}",
        "--node-rank": wishes,
        "--max-restarts": str(max_restarts),
        "--rdzv-id": nodes.name,
    }


def difference(name: str, mine: Mapping[str, str], other: str, theirs: Mapping[str, str]) -> str:
    """Return a text about the properties that differ between two nodes, "" if none do.

    Args:
        name: name of the one node.
        mine: its properties, from `describe_node`.
        other: name of the other node.
        theirs: the other's properties, from `describe_node`.
    """
    words = []
    for what in sorted(mine.keys() | theirs.keys()):
        one, two = (side.get(what) or "none" for side in (mine, theirs))
        if one != two:
            words.append(f"{what} is {one} on {name} and {two} on {other}")
    return "; ".join(words)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _code(target: Target) -> str:
    """Return a short hash of the file that the ranks will run, "" if there is no such file."""
    if target.kind == "script":
        path: Path | None = Path(target.name)
    else:
        path = _module_file(target.name.partition(":")[0])
    if path is None:
        return ""
    path = path / "__main__.py" if path.is_dir() else path
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:
        return ""


def _module_file(name: str) -> Path | None:
    """Find a module's file part by part, without importing its parent packages, which may need torch."""
    where: list[str] | None = None
    spec = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin else None
