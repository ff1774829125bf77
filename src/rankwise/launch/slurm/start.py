"""Messages between the launcher of an allocation and the supervisors of its nodes, as files in a shared folder."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rankwise._files import user_folder, write_whole
from rankwise.errors import LaunchError
from rankwise.launch.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of the ranks on all nodes, written by the launcher for the nodes, as a pickle named "start".

    Attributes:
        job: the launch, with the ranks of one node.
        num_nodes: number of nodes.
        attempt: number of the attempt in this launch, from 0.
        run_id: name of the launch.
        logs: existing folder for this attempt's logs, None for no logs.
        secret: with which the ranks authenticate each other.
    """

    job: Job
    num_nodes: int
    attempt: int
    run_id: str
    logs: Path | None
    secret: str

    @classmethod
    def read(cls, folder: Path) -> Start:
        """Read the start that the launcher wrote.

        Raises:
            LaunchError: the folder does not exist on this node.
        """
        try:
            found = pickle.loads((folder / "start").read_bytes())  # noqa: S301  (a folder that only this user can enter)
        except OSError as error:
            raise LaunchError(
                f"node {os.uname().nodename} cannot read {folder}: {error.strerror}; the nodes and the machine that "
                "starts them must share this folder (set XDG_STATE_HOME to a shared folder)"
            ) from error
        assert isinstance(found, Start)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """Fields in a JSON file, which appears at once."""

    def write(self, path: Path) -> None:
        """Write it into a file."""
        write_whole(path, json.dumps(asdict(self)).encode(), durable=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what was written into a file."""
        return cls(**json.loads(path.read_bytes()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous(_File):
    """Where the ranks find each other, written by the first node into "rendezvous.json".

    Attributes:
        address: address of the first node.
        port: port of rank 0, held by the first node's supervisor until the end.
        step_id: Slurm's id of this job step.
        hang_port: port of the first node's `Server`, 0 without one.
    """

    address: str
    port: int
    step_id: str
    hang_port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(_File):
    """How the ranks of one node ended, written by its supervisor into "node-N.json".

    Attributes:
        node: number of the node, from 0.
        text: the failure as printed, "" without one.
        exitcode: exit code for the launch.
        detail: all of the traceback or the stacks.
        suspicion: 0: a cause; 1: perhaps a cause; 2: the consequence of another failure.
        time_s: when it failed, seconds since the epoch.
        interrupted: the signal that stopped the ranks from outside, None if none did.
        again: the ranks saved and ended because they were asked to.
        step: the highest step that a rank reported, None if none did.
        failure: the entry for the run directory (`AttemptEnd.describe`), empty unless a rank has failed.
    """

    node: int
    text: str = ""
    exitcode: int = 0
    detail: str = ""
    suspicion: int = 0
    time_s: float = 0.0
    interrupted: int | None = None
    again: bool = False
    step: int | None = None
    failure: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read_all(cls, folder: Path) -> list[Self]:
        """Return the records written so far, ordered by node."""
        return sorted(map(cls.read, folder.glob("node-*.json")), key=lambda record: record.node)


def num_ready(folder: Path) -> int:
    """Return how many supervisors handle signals: each creates a file once it does."""
    return sum(1 for _ in folder.glob("ready-*"))


def state_folder(*, create: bool = True) -> Path:
    """Return this user's folder for the state of jobs, shared with the nodes; whoever writes into it creates it."""
    folder = user_folder("XDG_STATE_HOME", ".local/state") / "slurm"
    if create:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
