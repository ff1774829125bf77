"""`Checkpointer`: save, find, restore."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.checkpoint.manifest import CheckpointInfo, folders, refuse_later_format, step_of, verify
from rankwise.checkpoint.parts import as_part
from rankwise.checkpoint.publishing import Fence, clean, prune, set_aside
from rankwise.checkpoint.restoring import RestoreReport, decide, load_part, read_part
from rankwise.checkpoint.saving import SaveJob, save_job, write_checkpoint
from rankwise.checkpoint.together import take_together
from rankwise.data.contract import JSON
from rankwise.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["Checkpointer"]


class Checkpointer:
    """Checkpoints in one folder of a file system that all ranks see.

    A checkpoint is published whole or not at all, whatever is killed while it is written. Nothing is read by
    unpickling: restoring runs no code of the checkpoint.

    Args:
        folder: where the ``step-*`` folders lie; made at the first save. Of a run directory, which holds none itself,
            its ``checkpoints`` are read.
        world: default ``World.current()``.
        keep: how many of the newest stay, at least 1; None keeps all.
        keep_every: steps that are multiples of it stay for ever.
        fence: makes the context manager that is entered around every publish, and may refuse it by raising
            (``RunDir.fence``).
        attempt: number of this attempt of the run (``RunDir.attempt``). What a later attempt has saved is newer than
            what an earlier one has, whatever their steps.

    Raises:
        ConfigError: `keep` or `keep_every` is below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        world: World | None = None,
        keep: int | None = 3,
        fence: Fence = contextlib.nullcontext,
        keep_every: int | None = None,
        attempt: int = 0,
    ) -> None:
        if (keep is not None and keep < 1) or (keep_every is not None and keep_every < 1):
            raise ConfigError(f"keep and keep_every are at least 1 (or None); got {keep} and {keep_every}")
        from rankwise.world import World as _World

        self.folder = Path(folder).absolute()
        self._world = _World.current() if world is None else world
        self._keep = keep
        self._keep_every = keep_every
        self._fence = fence
        self._attempt = attempt
        self._cleaned = False
        self._skipped: dict[Path, str] = {}

    def save(self, step: int, parts: Mapping[str, Any], *, meta: Mapping[str, JSON] | None = None) -> Path:
        """Write a checkpoint and publish it. Every rank must call it, with the same step and part names.

        A checkpoint of the same step is replaced. The first save also removes what killed saves left behind. What
        `newest` has skipped is never removed: it is renamed to ``skipped-step-*``.

        Args:
            step: optimizer steps done.
            parts: `Stateful` parts by name; what is neither Stateful nor has a state is saved as a plain tree, from the
                main rank. States hold tensors, arrays, numbers, strings, None, and dicts, lists and tuples of these.
            meta: small JSON object kept in the manifest, from the main rank; NaN and infinities are kept.

        Returns:
            Folder of the checkpoint.

        Raises:
            CheckpointError: a rank could not write (disk full, ...); on every rank. The previous checkpoint is intact.
            FencedError: a newer attempt owns the run (on the main rank; CheckpointError elsewhere).
            ConfigError, DesyncError: wrong arguments, or different ones on the ranks.
        """
        what = f"saving step {step} in {self.folder}"

        def prepare() -> SaveJob:
            self._clean()
            return save_job(self.folder, self._world, step=step, attempt=self._attempt, parts=parts, meta=meta)

        job = take_together(self._world, what, prepare)
        write_checkpoint(job, self._world, self._fence)
        take_together(self._world, f"pruning {self.folder}", lambda: self._prune(job.target))
        return job.target

    def newest(self, step: int | None = None) -> CheckpointInfo | None:
        """Return the newest whole checkpoint, None if there is none. Every rank must call it; all get the same answer.

        The main rank reads all files of the candidates and compares their checksums; a damaged candidate is skipped,
        with a warning that gives the reason. One that cannot be read now, or that a later rankwise saved, is not
        skipped: that would go back behind its steps.

        Args:
            step: only those of at most this step.

        Raises:
            CheckpointError: a candidate cannot be read now (permissions, storage), has a format that came later, or
                there are candidates and all are damaged; on every rank.
        """
        found = take_together(self._world, f"looking for checkpoints in {self.folder}", lambda: self._find(step))
        answer: CheckpointInfo | None = self._world.broadcast_object(found)
        return answer

    def restore(
        self, parts: Mapping[str, Any], info: CheckpointInfo | None = None, *, allow_missing: Sequence[str] = ()
    ) -> RestoreReport | None:
        """Load a checkpoint into `parts`. Every rank must call it.

        All files are read before the first part is touched. "reduced" parts at another world size: the main rank takes
        the sum, the others nothing. "rederived" parts at another world size are left alone and reported.

        Args:
            parts: as for `save`; a plain dict is filled in place.
            info: which one; default ``newest()``.
            allow_missing: parts that the checkpoint need not hold.

        Returns:
            What was restored; None if there is no checkpoint.

        Raises:
            CheckpointError: as of `newest`; or a part is missing, does not fit, or cannot be read; on every rank.
        """
        chosen = self.newest() if info is None else info
        if chosen is None:
            return None
        world, what = self._world, f"restoring {chosen.path}"

        def read() -> tuple[RestoreReport, dict[str, Any], dict[str, Any]]:
            targets = {name: as_part(name, value) for name, value in parts.items()}
            report = decide(chosen, targets, world, allow_missing)
            return report, targets, {name: read_part(chosen, name, targets[name], world) for name in report.restored}

        report, targets, states = take_together(world, what, read)

        def load() -> None:
            for name, state in states.items():
                load_part(targets[name], state, name)

        take_together(world, what, load)
        return report

    def read(self, info: CheckpointInfo, name: str) -> Any:
        """Return the state of one part, without a part to load it into. Not a collective.

        Args:
            info: from `newest`.
            name: a part that was saved by this many ranks, or is replicated.

        Raises:
            CheckpointError: there is no such part, or it cannot be read.
        """
        if name not in info.parts:
            raise CheckpointError(f"{info.path} has no part {name!r}; it holds {', '.join(info.parts)}")
        state = read_part(info, name, None, self._world)
        return state["tree"] if isinstance(state, dict) and list(state) == ["tree"] else state

    def _find(self, step: int | None) -> CheckpointInfo | None:
        if not self._world.is_main:
            return None
        try:
            found = list(folders(self.folder)) or list(folders(self.folder / "checkpoints"))
            return self._first_whole([folder for folder in found if step is None or step_of(folder) <= step])
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint cannot be read now, which is no damage, so it was not skipped: {error}; mend storage or "
                "permissions and start again, or move its folder away to go on from an earlier one"
            ) from error

    def _first_whole(self, candidates: list[Path]) -> CheckpointInfo | None:
        skipped: dict[Path, str] = {}
        whole = None
        for folder in candidates:
            refuse_later_format(folder)
            try:
                whole = verify(folder)
                break
            except CheckpointError as error:
                skipped[folder] = str(error)
        if skipped and whole is None:
            reasons = "\n".join(f"  {folder}: {reason}" for folder, reason in skipped.items())
            raise CheckpointError(
                f"there are checkpoints, and none of them is whole:\n{reasons}\nNothing was removed. Restore one from "
                "a copy; or move them away to begin anew (of a whole run: --fresh, or Trainer(fresh=True))."
            )
        for folder in skipped.keys() - self._skipped.keys():
            warnings.warn(f"skipped the checkpoint {folder}: {skipped[folder]}", stacklevel=5)
        self._skipped |= skipped
        return whole

    def _clean(self) -> None:
        """Before a save: once what killed saves left, and whatever was skipped since the one before."""
        if not self._world.is_main or (self._cleaned and not self._skipped):
            return
        with self._fence():
            self.folder.mkdir(parents=True, exist_ok=True)
            for folder in self._skipped:
                set_aside(folder)
            self._skipped.clear()
            clean(self.folder)
        self._cleaned = True

    def _prune(self, newest: Path) -> None:
        if self._world.is_main:
            prune(self.folder, keep=self._keep, keep_every=self._keep_every, newest=newest, fence=self._fence)
