"""What must be the same on all nodes, found without importing it."""

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
    """Return what a node shows of itself to those that it wants to work with, by name."""
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
    """Say what two nodes do not have in common, "" if nothing.

    Args:
        name: the one node.
        mine: as `describe_node` has it.
        other: the other one.
        theirs: as `describe_node` has it.
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
    """Return a short hash of the file that the ranks will run, "" where there is none to look at."""
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
    """Find a module's file part by part: importing its parents, which may need torch, is the ranks' business."""
    where: list[str] | None = None
    spec = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin else None
