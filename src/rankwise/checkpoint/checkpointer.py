"""`Checkpointer`: save, find, restore."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, cast

from rankwise.checkpoint.commit import Disk, Fence, folder_name
from rankwise.checkpoint.format.manifest import (
    CheckpointInfo,
    LaterFormatError,
    complete_checkpoints,
    folders,
    read_manifest,
    step_of,
    verify,
)
from rankwise.checkpoint.interruption import Interruption
from rankwise.checkpoint.parts import as_part
from rankwise.checkpoint.restore import RestoreReport, load_part, plan_restore, read_part
from rankwise.checkpoint.retention import RetentionPolicy
from rankwise.checkpoint.save import PendingSave, PollSchedule, checked_step, collect
from rankwise.checkpoint.snapshot import HostBuffers
from rankwise.checkpoint.storage.bucket import Bucket, is_url
from rankwise.checkpoint.storage.object_path import ObjectPath
from rankwise.checkpoint.together import call_together
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError, ConfigError, Interrupted
from rankwise.world import World


class Checkpointer:
    """Checkpoints in one folder of a file system that all ranks see, or in an object store.

    A checkpoint is published completely or not at all, even if processes are killed while writing it. Nothing is
    unpickled: restoring runs no code from the checkpoint.

    Args:
        folder: folder of the ``step-*`` folders; made at the first save. A run directory, which has none itself, is
            read through its ``checkpoints``. Or the URL of a place in an object store (``s3://bucket/prefix``).
        world: default ``World.current()``.
        keep: number of newest checkpoints to keep, at least 1; None keeps all.
        fence: makes the context manager that is entered around every publish, and may refuse it by raising
            (``RunDir.fence``).
        keep_every: checkpoints at multiples of this step are kept for ever.
        keep_best: number of best checkpoints to keep in addition.
        metric: which of the ``metrics=`` of `save` defines the best.
        mode: "min" or "max": which value of it is best.
        attempt: number of this attempt of the run (``RunDir.attempt``). Checkpoints of a later attempt are newer than
            those of an earlier one, whatever their steps.
        asynchronous: `save` copies the states and returns; a thread writes. Published at the next `poll`, `wait`,
            `save` or `close` that finds all ranks done. Costs memory for a copy of this rank's data.
        store_options: of the object store, named as in obstore (``endpoint``, ``region``, ...).

    Attributes:
        folder: as given, absolute.
        published: the last checkpoint that this object has published, None before.

    Raises:
        ConfigError: a number to keep is below 1, or `metric` is missing.
        MissingExtraError: an object store needs obstore, which is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        world: World | None = None,
        keep: int | None = 3,
        fence: Fence = contextlib.nullcontext,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
        attempt: int = 0,
        asynchronous: bool = False,
        store_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._retention = RetentionPolicy(
            keep=keep, keep_every=keep_every, keep_best=keep_best, metric=metric, mode=mode
        )
        self._storage = (
            cast("Disk", Bucket(str(folder), store_options or {})) if is_url(folder) else Disk(Path(folder).absolute())
        )
        self.folder = self._storage.root
        self.published: Path | None = None
        self._world = World.current() if world is None else world
        self._fence = fence
        self._attempt = attempt
        self._host = HostBuffers() if asynchronous else None
        self._thread = _one_thread() if asynchronous else None
        self._saving: PendingSave | None = None
        self._poll_schedule = PollSchedule()
        self._cleaned = self._warned_of_old = False
        self._skipped: dict[Path, str] = {}
        self._interruption: Interruption | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # an interruption is raised by all ranks together, after their save
        self.close(publish=kind is None or issubclass(kind, Interrupted))

    def save(
        self,
        step: int,
        parts: Mapping[str, Any],
        *,
        meta: Mapping[str, JSON] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Path:
        """Write a checkpoint and publish it. Every rank must call it, with the same step and part names.

        A checkpoint of the same step is replaced. The first save also removes what killed saves left behind.
        Checkpoints that `newest` skipped are never removed, but renamed to ``skipped-step-*``. With
        ``asynchronous=True`` this publishes the previous save, and returns when the states are copied.

        Args:
            step: optimizer steps done.
            parts: `Stateful` parts by name; an object without a state is saved as a plain tree, from the main rank.
                States consist of tensors, arrays, numbers, strings, None, and dicts, lists and tuples of these.
            meta: small JSON object for the manifest, from the main rank; may contain NaN and infinities.
            metrics: numbers for the manifest, by which `keep_best` and `best` choose.

        Returns:
            Folder of the checkpoint.

        Raises:
            CheckpointError: a rank could not write (disk full, ...); on every rank. The previous checkpoint is intact.
            FencedError, RunDirError: a newer attempt owns the run, or without a `fence` another process saves into this
                folder (on the main rank; CheckpointError elsewhere).
            ConfigError, DesyncError: wrong arguments, or different ones on the ranks.
        """
        self.wait()

        def states() -> tuple[CheckpointInfo, dict[str, Any]]:
            target = self.folder / folder_name(checked_step(step))
            self._clean()
            return collect(
                target,
                self._world,
                step=step,
                attempt=self._attempt,
                parts=parts,
                meta=meta,
                metrics=metrics,
                host=self._host,
            )

        saving = PendingSave(
            f"saving step {step} in {self.folder}",
            self._world,
            self._storage,
            self._fence,
            poll_schedule=self._poll_schedule,
            prune=self._prune,
            background=self._thread,
        )
        saving.start(states)
        self._saving = saving
        if self._host is None:
            self.wait()
        return cast("Path", saving.target)

    def poll(self) -> Path | None:
        """Publish what a thread has written, if all ranks are done; return its folder. Every rank calls it.

        Call it at every step: free while no save is in progress, else a small collective now and then.
        """
        if self._saving is None or not self._poll_schedule.is_due():
            return None
        return self._advanced(self._saving, wait=False)

    def wait(self) -> Path | None:
        """Wait until all ranks have written the current save, publish it and return its folder. A collective.

        Raises:
            CheckpointError: a rank could not write it; on every rank. The previous checkpoint is intact.
            FencedError: a newer attempt owns the run (on the main rank; CheckpointError elsewhere).
        """
        published = None
        while self._saving is not None:
            published = self._advanced(self._saving, wait=True)
        return published

    def close(self, *, publish: bool = True) -> None:
        """Wait for the current save and publish it; every rank calls it. Leaving the ``with`` block calls it.

        Also restores the signal handlers that `should_stop` has replaced.

        Args:
            publish: False, after an error: this rank only waits for its thread, and removes what it wrote.
        """
        saving = self._saving
        try:
            if publish:
                self.wait()
            elif saving is not None:
                saving.give_up()
        finally:
            self._saving, self._cleaned = None, False
            self._storage.release()
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = _one_thread()  # runs from the next save on, if there is one
            if self._interruption is not None:
                self._interruption.close()

    def should_stop(self, step: int) -> bool:
        """Return whether all ranks stop now, because of a signal or RANKWISE_MAX_SECONDS. Every rank calls it.

        For your own loop, after each step: if it is true, save and ``raise Interrupted``. Signals are recorded from the
        first call on, until `close`; see `Interruption`.

        Args:
            step: optimizer steps done.
        """
        if self._interruption is None:
            self._interruption = Interruption(self._world)
        return self._interruption.should_stop(step)

    def newest(self, step: int | None = None) -> CheckpointInfo | None:
        """Return the newest complete checkpoint, or None. Every rank must call it; all get the same answer.

        The main rank reads all files of the candidates and compares their checksums; a damaged candidate is skipped,
        with a warning that gives the reason. One that cannot be read now, or that a later rankwise saved, is not
        skipped: its steps would be lost.

        Args:
            step: only checkpoints up to this step.

        Raises:
            CheckpointError: a candidate cannot be read now (permissions, storage), has a later format, or
                there are candidates and all are damaged; on every rank.
        """
        return self._found(
            f"looking for checkpoints in {self.folder}",
            lambda root: [folder for folder in folders(root) if step is None or step_of(folder) <= step],
        )

    def best(self) -> CheckpointInfo | None:
        """Return the best complete checkpoint by ``metric=``, None if none has it. Every rank must call it.

        Raises:
            ConfigError: there is no ``metric=``.
            CheckpointError: see `newest`.
        """
        if self._retention.metric is None:
            raise ConfigError("best() needs Checkpointer(metric=...), a name from the metrics= of save")
        return self._found(
            f"looking for the best checkpoint in {self.folder}",
            lambda root: [info.path for info in self._retention.by_quality(complete_checkpoints(root))],
        )

    def restore(
        self, parts: Mapping[str, Any], info: CheckpointInfo | None = None, *, allow_missing: Sequence[str] = ()
    ) -> RestoreReport | None:
        """Load a checkpoint into `parts`. Every rank must call it.

        All files are read before the first part is changed. "reduced" parts at another world size: the main rank gets
        the sum, the others nothing. "rederived" parts at another world size are not changed, but reported.

        Args:
            parts: as for `save`; a plain dict is filled in place.
            info: the checkpoint; default ``newest()``.
            allow_missing: parts that the checkpoint may lack.

        Returns:
            The report; None if there is no checkpoint.

        Raises:
            CheckpointError: see `newest`; or a part is missing, does not fit, or cannot be read; on every rank.
        """
        chosen = self.newest() if info is None else info
        if chosen is None:
            return None
        world, what = self._world, f"restoring {chosen.path}"

        def read() -> tuple[RestoreReport, dict[str, Any], dict[str, Any]]:
            targets = {name: as_part(name, value) for name, value in parts.items()}
            report = plan_restore(chosen, targets, world, allow_missing)
            return report, targets, {name: read_part(chosen, name, targets[name], world) for name in report.restored}

        report, targets, states = call_together(world, what, read)

        def load() -> None:
            for name, state in states.items():
                load_part(targets[name], state, name)

        call_together(world, what, load)
        return report

    def read(self, info: CheckpointInfo, name: str) -> Any:
        """Return the state of one part, without an object to load it into. Not a collective.

        Args:
            info: from `newest`.
            name: a part that was saved by equally many ranks, or is replicated.

        Raises:
            CheckpointError: there is no such part, or it cannot be read.
        """
        if name not in info.parts:
            raise CheckpointError(f"{info.path} has no part {name!r}; it holds {', '.join(info.parts)}")
        state = read_part(info, name, None, self._world)
        return state["tree"] if isinstance(state, dict) and list(state) == ["tree"] else state

    def _found(self, what: str, candidates: Callable[[Path], list[Path]]) -> CheckpointInfo | None:
        """Return the main rank's first whole candidate in the folder, or in that of a run directory."""
        self.wait()

        def look() -> CheckpointInfo | None:
            if not self._world.is_main:
                return None
            try:
                return self._first_whole(candidates(self.folder)) or self._first_whole(
                    candidates(self.folder / "checkpoints")
                )
            except OSError as error:
                raise CheckpointError(
                    f"a checkpoint cannot be read now, but is not damaged, so it was not skipped: {error}; fix storage "
                    "or permissions and start again, or move its folder away to continue from an earlier one"
                ) from error

        info: CheckpointInfo | None = self._world.broadcast_object(call_together(self._world, what, look))
        if info is None or not isinstance(self.folder, ObjectPath):
            return info
        return replace(info, path=replace(info.path, store=self.folder.store))  # by this rank's own connection

    def _first_whole(self, candidates: list[Path]) -> CheckpointInfo | None:
        skipped: dict[Path, str] = {}
        whole = None
        for folder in candidates:
            try:
                whole = verify(folder)
                break
            except LaterFormatError:
                raise
            except CheckpointError as error:
                skipped[folder] = str(error)
        if skipped and whole is None:
            reasons = "\n".join(f"  {folder}: {reason}" for folder, reason in skipped.items())
            raise CheckpointError(
                f"there are checkpoints, but none of them is whole:\n{reasons}\nNothing was removed. Restore one from "
                "a copy; or move them away to start over (for a whole run: --fresh, or Trainer(fresh=True))."
            )
        for folder in skipped.keys() - self._skipped.keys():
            warnings.warn(f"skipped the checkpoint {folder}: {skipped[folder]}", stacklevel=7)
        self._skipped |= skipped
        return whole

    def _clean(self) -> None:
        """Before a save, move skipped checkpoints aside; the first time also remove what killed saves left."""
        if not self._world.is_main or (self._cleaned and not self._skipped):
            return
        self._storage.clean(list(self._skipped), self._fence)
        self._skipped.clear()
        self._cleaned = True

    def _advanced(self, saving: PendingSave, *, wait: bool) -> Path | None:
        """Advance the current save; return its folder if it is published."""
        self._saving = None  # if it fails, there is none any more
        if not saving.advance(wait=wait):
            self._saving = saving
            return None
        self.published = cast("Path", saving.target)
        return self.published

    def _prune(self, newest: Path) -> None:
        if self._retention.keep is None:
            return
        try:
            self._storage.remove(
                lambda: [
                    info.path
                    for info in self._retention.surplus(complete_checkpoints(self.folder), read_manifest(newest))
                ],
                self._fence,
            )
        except OSError as error:
            # the run goes on: a shared file system may hold a file that another process still reads
            if not self._warned_of_old:
                warnings.warn(
                    f"an older checkpoint in {self.folder} cannot be removed: {error}; {newest.name} was published and "
                    "the run goes on, but older ones take up space: make them removable, or move them elsewhere",
                    stacklevel=2,
                )
            self._warned_of_old = True


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rankwise-checkpoint")
