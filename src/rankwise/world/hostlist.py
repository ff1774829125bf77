"""Slurm's compressed lists: host names like ``a[1-3,07],b`` and task counts like ``2(x3),1``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from rankwise.errors import WorldError

__all__ = ["expand_counts", "expand_hosts"]

_MAX_HOSTS = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """Return the host names of a Slurm node list, in order.

    Brackets hold comma-separated numbers and ranges, leading zeros kept; a name may have several.

    Raises:
        WorldError: the list is not well formed, or names more than a million hosts.
    """
    hosts: list[str] = []
    for item in _split(text):
        for host in _expand(item, text):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise WorldError(f"the Slurm node list {text!r} names more than {_MAX_HOSTS} hosts")
    if not hosts:
        raise WorldError(f"the Slurm node list {text!r} names no host")
    return hosts


def _split(text: str) -> Iterator[str]:
    """Cut at the commas outside of brackets."""
    depth, start = 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise WorldError(f"the brackets of the Slurm node list {text!r} do not match")
        if char == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
    if depth:
        raise WorldError(f"the brackets of the Slurm node list {text!r} do not match")
    yield text[start:].strip()


def _expand(item: str, text: str) -> Iterator[str]:
    if not item:
        raise WorldError(f"the Slurm node list {text!r} has an empty entry")
    pieces = re.split(r"\[([^\]]*)\]", item)
    choices = [[piece] if i % 2 == 0 else _numbers(piece, text) for i, piece in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _numbers(inside: str, text: str) -> Iterator[str] | list[str]:
    parts = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in inside.split(",")]
    found: list[str] = []
    for part in parts:
        if part is None:
            raise WorldError(
                f"the Slurm node list {text!r} has {inside!r} in brackets; numbers and ranges were expected"
            )
        first, last = part[1], part[2] or part[1]
        if int(last) < int(first) or int(last) - int(first) >= _MAX_HOSTS:
            raise WorldError(f"the Slurm node list {text!r} has the range {part[0]!r}, which is empty or too long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """Return the numbers of a Slurm task count list such as ``2(x3),1``, one per node.

    Raises:
        WorldError: the list is not well formed.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", item)
        if match is None:
            raise WorldError(f"the Slurm task counts {text!r} are not of the form 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
