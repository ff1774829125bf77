"""PendingSave: every rank writes its files, directly or in the background, and the main rank publishes them."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rankwise._version import __version__
from rankwise.checkpoint.commit import Disk, Fence
from rankwise.checkpoint.format.manifest import CheckpointInfo, FileRecord, PartRecord, encode_manifest
from rankwise.checkpoint.format.payload import encode, write_payload
from rankwise.checkpoint.format.pieces import only_pieces
from rankwise.checkpoint.parts import as_part
from rankwise.checkpoint.snapshot import HostBuffers
from rankwise.checkpoint.together import gather_together
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError, ConfigError, DesyncError

if TYPE_CHECKING:
    from rankwise.world import World

_MOST_CALLS = 64
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def collect(
    target: Any,
    world: World,
    *,
    step: int,
    attempt: int,
    parts: Mapping[str, Any],
    meta: Mapping[str, JSON] | None,
    metrics: Mapping[str, float] | None,
    host: HostBuffers | None,
) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Collect the current states of all parts of this rank. Local: no collective, nothing is written.

    The arguments are those of `Checkpointer.save`; `target` is the published place, and `host` copies the states, so
    that they may change while they are written (None: they must not).

    Returns:
        The manifest, its parts without files, equal on all ranks; and the encoded trees that this rank writes, by part.

    Raises:
        ConfigError: a bad step, name, part, `meta` or metric.
        CheckpointError: a state has a value that checkpoints do not support.
    """
    if not isinstance(parts, Mapping):
        raise ConfigError(f"parts are saved by name, {{'model': Replicated(model)}}; got a {type(parts).__name__}")
    for name in parts:
        if not isinstance(name, str) or _PART_NAME.fullmatch(name) is None:
            raise ConfigError(f"a part's name must consist of letters, digits, '.', '_' and '-'; got {name!r}")
    sources = {name: as_part(name, value) for name, value in parts.items()}
    records = {
        name: PartRecord(
            scope=part.scope, files=(), in_pieces=part.scope == "sharded" and getattr(part, "by_pieces", False)
        )
        for name, part in sources.items()
    }
    trees = {}
    try:
        for name, part in sources.items():
            if world.is_main or records[name].scope != "replicated":
                state = part.state_dict()
                mine = only_pieces(state) if records[name].in_pieces and not world.is_main else state
                trees[name] = encode(mine, name, host)
    finally:
        if host is not None:  # after an error, too: what was copied then is no state of the next save
            host.synchronize()
    manifest = CheckpointInfo(
        path=target,
        step=step,
        attempt=attempt,
        world_size=world.world_size,
        time=time.time(),
        versions={"rankwise": __version__, **_loaded_versions()},
        parts=records,
        meta=_checked_meta(meta or {}),
        metrics=_checked_metrics(metrics or {}),
    )
    return manifest, trees


def checked_step(step: Any) -> int:
    """Return the number of optimizer steps done, after a check.

    Raises:
        ConfigError: it is not such a number.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"a checkpoint needs the number of optimizer steps done, an int >= 0; got {step!r}")
    return step


def _loaded_versions() -> dict[str, str]:
    loaded = ((name, sys.modules.get(name)) for name in ("torch", "jax"))
    return {name: str(module.__version__) for name, module in loaded if module is not None}


class PendingSave:
    """One save, from its states to its publication: two halves, each done directly or by a thread.

    First every rank writes its files, then the main one publishes them. `start` and `advance` are one collective each:
    while cores are busy writing, waiting for other ranks takes longer than copying the states.

    Args:
        what: what is saved where, for messages.
        world: this rank's world.
        storage: the storage.
        fence: see `Checkpointer`.
        poll_schedule: decides which calls of `poll` advance it; kept between saves.
        prune: called on the main rank with the folder after publication.
        background: its thread does both halves; None: they are done directly. It is kept between saves, because
            starting a thread means waiting until it runs.
    """

    def __init__(
        self,
        what: str,
        world: World,
        storage: Disk,
        fence: Fence,
        *,
        poll_schedule: PollSchedule,
        prune: Callable[[Any], None],
        background: Executor | None,
    ) -> None:
        self._what = what
        self._world = world
        self._storage = storage
        self._fence = fence
        self._poll_schedule = poll_schedule
        self._prune = prune
        self._background = background
        self._manifest: CheckpointInfo  # its parts without files
        self._trees: dict[str, Any]
        self._token = secrets.token_hex(4)  # tells the files of this save from those of others; the main rank's is used
        self._made: Any = None
        self._is_publishing = False
        self._act: Callable[[], Any] | None = None  # the half that is done now, by this thread
        self._done: Future[Any] | None = None

    def start(self, states: Callable[[], tuple[CheckpointInfo, dict[str, Any]]]) -> None:
        """Collect the states of every rank, agree on what is saved, and begin to write.

        Args:
            states: calls `collect`; local.
        """

        def prepare() -> tuple[int, dict[str, str], str]:
            self._manifest, self._trees = states()
            if self._world.is_main:  # before the others know of it: they write into what it has made
                self._made = self._place()
                self._storage.prepare(self._made)
            return self._manifest.step, {name: part.scope for name, part in self._manifest.parts.items()}, self._token

        try:
            plans = gather_together(self._world, self._what, prepare)
            _refuse_different(plans)
        except BaseException:
            self.give_up()
            raise
        self._token = plans[0][2]
        self._made = self._place()
        self._begin(self._write)

    @property
    def target(self) -> Any:
        """The place of the published checkpoint."""
        return self._manifest.path

    def is_idle(self) -> bool:
        """Whether this rank's thread is idle. Local."""
        return self._done is not None and self._done.done()

    def advance(self, *, wait: bool) -> bool:
        """Begin the next half if this one is done on all ranks; return whether the checkpoint is published.

        If one rank has failed, all fail: of the first half nothing is published.

        Args:
            wait: whether to wait for ranks that are not done.
        """
        try:
            ended = gather_together(
                self._world, self._what, lambda: (self._ended(),) if wait or self.is_idle() else None
            )
        except BaseException:
            self.give_up()
            raise
        done = [one[0] for one in ended if one is not None]
        if len(done) < len(ended):
            return False
        if not wait:
            self._poll_schedule.end(is_publishing=self._is_publishing)
        if self._is_publishing:
            self._act = None  # it refers to this object, which would wait for a garbage collection
            return True
        self._is_publishing = True
        self._begin(lambda: self._publish(done))
        return False

    def give_up(self) -> None:
        """Remove the files that this rank has written. Local."""
        if self._done is not None:
            self._done.exception()
        if self._made is not None:
            folder = None if self._world.is_main else f"rank-{self._world.rank}"
            with contextlib.suppress(OSError):
                self._storage.discard(self._made, folder)

    def _place(self) -> Any:
        return self._storage.make(self._manifest.step, self._manifest.attempt, self._token)

    def _begin(self, act: Callable[[], Any]) -> None:
        self._poll_schedule.begin(is_publishing=self._is_publishing)
        if self._background is None:
            self._act = act
        else:
            self._done = self._background.submit(act)

    def _ended(self) -> Any:
        if self._done is not None:
            return self._done.result()
        assert self._act is not None
        return self._act()

    def _write(self) -> dict[str, tuple[str, int, bytes]]:
        """Return path, size and SHA-256 by part, compact enough for one message."""
        folder, written = f"rank-{self._world.rank}", {}
        for name, tree in self._trees.items():
            inside = name if self._manifest.parts[name].scope == "replicated" else f"{folder}/{name}"
            record = write_payload(self._storage, self._made, inside, tree)
            written[name] = (record.path, record.bytes, bytes.fromhex(record.sha256))
        self._storage.flush(self._made, folder)
        self._trees = {}  # the copies of the states are free while the main rank publishes
        return written

    def _publish(self, told: list[dict[str, tuple[str, int, bytes]]]) -> None:
        if not self._world.is_main:
            return
        gathered = [
            {name: FileRecord(path=path, bytes=size, sha256=sha.hex()) for name, (path, size, sha) in files.items()}
            for files in told
        ]
        self._refuse_invisible(gathered)
        # in an object store the files are below the save's own name
        inside = self._made.name if self._made.name.endswith(self._token) else ""
        parts = {
            name: replace(
                part,
                files=tuple(
                    replace(files[name], path=f"{inside}/{files[name].path}".lstrip("/"))
                    for files in gathered
                    if name in files
                ),
            )
            for name, part in self._manifest.parts.items()
        }
        manifest = replace(self._manifest, parts=parts)
        self._storage.publish(self._made, manifest.step, encode_manifest(manifest), self._fence)
        self._made = None  # it exists, whatever happens from now on
        self._prune(self.target)

    def _refuse_invisible(self, gathered: list[dict[str, FileRecord]]) -> None:
        """Check that every file is visible here: a rank may have written to a local disk of its machine."""
        for rank, files in enumerate(gathered):
            for record in files.values():
                if self._storage.size_of(self._made, record.path) != record.bytes:
                    raise CheckpointError(
                        f"rank {rank} has written {record.path}, but the main rank does not see it in {self._made}; "
                        "checkpoints need a file system that all ranks share"
                    )


class PollSchedule:
    """Decides which calls of `poll` ask the other ranks, from data that all ranks have, so that all decide alike.

    The 1st, 2nd, 4th, ... call, so that the end of a half is noticed after at most twice its duration; from the second
    save on, the first few that came too early the last time are left out.
    """

    def __init__(self) -> None:
        self._calls, self._due = 0, 1
        self._took = {False: 1, True: 1}

    def begin(self, *, is_publishing: bool) -> None:
        """Begin a half."""
        self._calls, self._due = 0, max(1, self._took[is_publishing] * 3 // 4)

    def is_due(self) -> bool:
        """Count a call, and return whether to ask."""
        self._calls += 1
        if self._calls < self._due:
            return False
        self._due += min(self._due, _MOST_CALLS)
        return True

    def end(self, *, is_publishing: bool) -> None:
        """Record that the half was done at this call."""
        self._took[is_publishing] = max(1, self._calls)


def _refuse_different(plans: list[Any]) -> None:
    """Refuse ranks that save different things: the manifest would name missing parts."""
    different = tuple(rank for rank, plan in enumerate(plans) if plan[:2] != plans[0][:2])
    if different:
        told = "; ".join(f"rank {rank}: step {plans[rank][0]}, {plans[rank][1]}" for rank in (0, *different))
        raise DesyncError(
            f"all ranks must save the same step with the same parts and scopes, but: {told}", ranks=different
        )


def _checked_meta(meta: Mapping[str, JSON]) -> dict[str, JSON]:
    try:  # a copy, as it will be read: what lies inside may change before a thread has written it
        copied: dict[str, JSON] = json.loads(json.dumps(dict(meta)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"meta must be JSON: numbers, strings, bools, None, lists and dicts; {error}") from error
    return copied


def _checked_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"metrics must be numbers by name; {name} is a {type(value).__name__}: pass float(...)")
    return {name: float(value) for name, value in metrics.items()}
