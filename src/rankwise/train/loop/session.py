"""A training run on disk: open, restore, log, save, finish. With ``run=False`` nothing is written."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from rankwise._files import write_whole
from rankwise.checkpoint import Checkpointer, Interruption
from rankwise.data.contract import JSON, Stateful
from rankwise.errors import CheckpointError, ConfigError, RunDirError
from rankwise.guard import Guard
from rankwise.tracking import RunDir, Tracker, default_run_dir
from rankwise.tracking.verdict import on_main
from rankwise.train.loop.configuration import MAY_CHANGE, RELEASED, TrainOptions, environment_record
from rankwise.train.loop.parts import Progressed
from rankwise.train.models.passes import seed_training
from rankwise.train.step.schedules import plan_of
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.tracking import Service, Sink
    from rankwise.tracking.tracker import SinkName

Resume = Literal["auto", "must", "never"]
_LOG = logging.getLogger("rankwise.train")
_HOLD_S = 0.1  # writing a single line costs several times as much as one of many
# Positive if this process is a restart of the same start, by rankwise, torchrun or Slurm.
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """The place of a run, and whether it may be continued.

    Attributes:
        path: run directory; None = RANKWISE_RUN_DIR, else ``runs/<script>``; False writes nothing.
        resume: None = RANKWISE_RESUME, else "auto".
        tensorboard: also write TensorBoard event files.
        sinks: see `rankwise.tracking.Tracker`.
        options: which checkpoints to keep, how to write them, and what may change.
        fresh: move an existing run aside and start over; None = RANKWISE_FRESH=1. A restart of this start continues.
        init_from: run directory, or folder of checkpoints; a new run takes the weights from its newest checkpoint.
    """

    path: str | os.PathLike[str] | Literal[False] | None = None
    resume: Resume | None = None
    tensorboard: bool = False
    sinks: Sequence[SinkName | Sink | Service] = ()
    options: TrainOptions = field(default_factory=TrainOptions)
    fresh: bool | None = None
    init_from: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.chosen_resume not in ("auto", "must", "never"):
            raise ConfigError(f"resume must be 'auto', 'must' or 'never', got {self.chosen_resume!r}")

    @property
    def chosen_resume(self) -> Resume:
        """The value from the argument or from the launcher."""
        return self.resume or cast("Resume", os.environ.get("RANKWISE_RESUME", "auto"))

    @property
    def chosen_fresh(self) -> bool:
        """The value from the argument or from the launcher, at the first attempt of a start."""
        wanted = os.environ.get("RANKWISE_FRESH") == "1" if self.fresh is None else self.fresh
        return wanted and all(os.environ.get(name, "0") in ("", "0") for name in _RESTARTS)


@dataclass(slots=True, kw_only=True)
class Session:
    """The run directory, tracker and checkpoints of one `fit`, and the progress of the run.

    `by_length`: only their length identifies the data; messages say so if it matters.
    """

    choice: RunChoice
    world: World
    record: Mapping[str, Any]
    parts: dict[str, Stateful]
    by_length: bool = False
    run_dir: RunDir | None = None
    tracker: Tracker | None = None
    checkpointer: Checkpointer | None = None
    progressed: Progressed = field(default_factory=Progressed)
    resumed_step: int = 0
    resumed_text: str = ""
    saved_by: int = 0
    last_values: Mapping[str, float] = field(default_factory=dict)
    newest: Path | None = None
    unvalidated: int | None = None
    interruption: Interruption | None = None
    _changes_logged: bool = False

    @classmethod
    @contextmanager
    def open(
        cls,
        choice: RunChoice,
        *,
        world: World,
        record: Mapping[str, Any],
        parts: Mapping[str, Stateful],
        by_length: bool = False,
        reopen: bool = False,
    ) -> Iterator[Session]:
        """Open the run directory (every rank calls it) and close everything at the end, also after an error."""
        session = cls(choice=choice, world=world, record=record, parts=dict(parts), by_length=by_length)
        session.parts["progress"] = session.progressed
        try:
            if choice.path is not False:
                session._take_run(reopen=reopen)
            elif (choice.sinks or choice.tensorboard) and world.is_main:
                _LOG.warning("run=False keeps no numbers, so nothing is sent to the trackers")
            yield session
        finally:
            session._close()

    def reopen(self) -> None:
        """Open a finished run again, to continue it. Every rank calls it, and `restore` afterwards."""
        self._close()
        self._take_run(reopen=True)

    def _take_run(self, *, reopen: bool) -> None:
        self.run_dir = run_dir = RunDir.open(
            Path(self.choice.path or default_run_dir()),
            config=self.record,
            environment=environment_record(self.world),
            world=self.world,
            may_change=(*MAY_CHANGE, *(RELEASED[name] for name in self.choice.options.may_change)),
            resume=self.choice.chosen_resume,
            fresh=self.choice.chosen_fresh and not reopen,
            reopen=reopen,
        )
        if run_dir.finished is None:
            self.tracker = Tracker(
                run_dir,
                world=self.world,
                sinks=self.choice.sinks,
                tensorboard=self.choice.tensorboard,
                hold_s=_HOLD_S,
            )
        options = self.choice.options
        self.checkpointer = Checkpointer(
            run_dir.checkpoints,
            world=self.world,
            keep=options.keep,
            keep_best=options.keep_best,
            metric=options.best_metric,
            mode=options.best_mode,
            asynchronous=options.asynchronous,
            fence=run_dir.fence,
            attempt=run_dir.attempt,
        )
        if not self._changes_logged:
            self._log_changes(run_dir)
            self._changes_logged = True

    def _close(self) -> None:
        with ExitStack() as stack:  # the run is released even if a disk is full
            if self.run_dir is not None:
                stack.callback(self.run_dir.close)
            if self.tracker is not None:
                stack.callback(self.tracker.close)
                self.tracker = None
            if self.checkpointer is not None:  # after an error the other ranks may not take part in publishing
                self.checkpointer.close(publish=False)

    def keep_findings(self, guard: Guard) -> None:
        """Write the guard's findings and the number of skipped samples, for `rankwise report`, if there are any."""
        told = [{**asdict(finding), "text": str(finding)} for finding in guard.findings]
        found = {"num_lost": self.progressed.num_lost, "guard": told}
        if self.run_dir is None or not self.world.is_main or not any(found.values()):
            return
        path = self.run_dir.path / "findings.json"
        try:
            before = json.loads(path.read_bytes()) if path.exists() else {}
            this = {"time": time.time(), "num_steps": self.progressed.num_steps, **found}
            write_whole(path, json.dumps({**before, str(self.run_dir.attempt): this}).encode(), durable=False)
        except (OSError, ValueError) as error:  # an incomplete report must not end the run
            _LOG.warning("%s: the findings of the guard cannot be saved: %s", path, error)

    def _log_changes(self, run_dir: RunDir) -> None:
        if not run_dir.resumed or not self.world.is_main:
            return
        for line in run_dir.changed:
            name, _, values = line.partition(": ")
            old, _, new = values.partition(" -> ")
            if name != "step_fn_code":
                _LOG.warning("%s: changed since the last attempt: %s", run_dir.path, line)
            elif old.partition(" ")[0] == new.partition(" ")[0]:  # compiled by the same version of Python
                _LOG.warning("%s: the code of the step function has changed since the last attempt", run_dir.path)
        if self.by_length:
            _LOG.warning(
                "%s: the data have no fingerprint, so only their length was compared: give the dataset an attribute "
                "`fingerprint`, or pass fingerprint= to the Order, with a value that changes with the content",
                run_dir.path,
            )

    @property
    def path(self) -> Path | None:
        """The run directory, None if nothing is written."""
        return None if self.run_dir is None else self.run_dir.path

    @property
    def finished(self) -> Mapping[str, Any] | None:
        """The result of the run if it was finished before, None otherwise."""
        return None if self.run_dir is None else self.run_dir.finished

    def restore(self) -> None:
        """Load the newest valid checkpoint into the parts, or start fresh. Every rank calls it.

        Raises:
            CheckpointError: the run is finished, and its last checkpoint is missing or damaged.
            RunDirError: the run has published checkpoints, and none exists.
        """
        seed_training(self.world, 0)
        hooks = [name for name in self.parts if name.startswith("hook_")]  # a hook may be new
        scheduler = getattr(self.parts.get("scheduler"), "obj", None)
        plan = plan_of(scheduler)
        report = None if self.checkpointer is None else self.checkpointer.restore(self.parts, allow_missing=hooks)
        self._log_plan(plan, plan_of(scheduler))
        if report is None:
            self._begin()
        else:
            assert self.run_dir is not None
            wanted = None if self.finished is None else self.finished["values"].get("num_steps")
            if wanted not in (None, report.step):  # the recorded values would not match the state
                raise CheckpointError(
                    f"{self.run_dir.path} finished after step {wanted}, but its newest good checkpoint is of step "
                    f"{report.step}: put that of step {wanted} back, or move {self.run_dir.path / 'finished.json'} "
                    "away to continue from there"
                )
            self.resumed_step, self.saved_by = self.progressed.num_steps, report.world_size
            self.newest = report.path
            self.last_values = dict(cast("Mapping[str, float]", report.meta.get("values", {})))
            self.unvalidated = cast("int | None", report.meta.get("unvalidated"))
            text = f"continuing {self.run_dir.path} after step {report.step} (attempt {self.run_dir.attempt})"
            if report.world_size != self.world.world_size:
                text += f"; it was saved by {report.world_size} ranks and continues with {self.world.world_size}"
            if report.rederived:
                text += f", so each rank derives anew: {', '.join(report.rederived)}"
                seed_training(self.world, self.resumed_step)
            self.resumed_text = text
        if (tracker := self.tracker) is not None:
            ids = {} if report is None else cast("Mapping[str, str]", report.meta.get("trackers", {}))
            on_main(self.world, lambda: tracker.start_attempt(self.resumed_step, ids=ids))

    def _log_plan(self, wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        old = [f"{name}={stored[name]} (here {value})" for name, value in wanted.items() if stored[name] != value]
        if old and self.world.is_main:
            _LOG.warning(
                "%s: the scheduler keeps the plan of the checkpoint: %s. To train longer, plan for all epochs at once "
                "and end early with limit_steps=; use LambdaLR, which follows the function passed now; or init_from=",
                *(self.path, ", ".join(old)),
            )

    def _begin(self) -> None:
        """Start at step 0, unless there was an earlier attempt."""
        run, ways = self.run_dir, "start again with --fresh, Trainer(fresh=True) or RANKWISE_FRESH=1"
        if run is not None and run.finished is not None:
            raise CheckpointError(
                f"{run.path} is finished, but there is no checkpoint in {run.checkpoints} to restore its model from; "
                f"put one back, or {ways}"
            )
        if run is not None and run.saved:
            raise RunDirError(
                f"{run.path} has published checkpoints, but {run.checkpoints} no longer holds any: it does not restart "
                f"silently. Put one back, or {ways}"
            )
        if run is not None and run.resumed and self.world.is_main:
            _LOG.warning("%s starts at step 0 again: no earlier attempt has published a checkpoint", run.path)
        if self.choice.init_from is None:
            return
        source = Checkpointer(Path(self.choice.init_from), world=self.world)
        report = source.restore({"model": self.parts["model"]})
        if report is None:
            raise CheckpointError(f"init_from={str(self.choice.init_from)!r} holds no checkpoint to take weights from")
        self.resumed_text = f"starting from the weights of {report.path}"

    def flush(self) -> None:
        """Write buffered lines; where the main rank cannot, every rank raises. Every rank calls it."""
        if self.tracker is not None:
            on_main(self.world, self.tracker.flush)

    def save(self, values: Mapping[str, float], *, unvalidated: int | None = None) -> None:
        """Save a checkpoint of the completed step; one written by a thread is published later. Every rank calls it.

        Args:
            values: of the last epoch; new values are compared with those of other checkpoints.
            unvalidated: an epoch whose steps are done, but not its validation.
        """
        same = values is self.last_values or unvalidated is not None
        new = {} if same else {name: float(value) for name, value in values.items()}
        self.last_values = values
        if self.checkpointer is None or self.run_dir is None:
            return
        self.flush()  # a run that resumes here expects earlier lines to be written
        meta: dict[str, JSON] = {"values": dict(values)}
        if self.tracker is not None and self.tracker.ids:
            meta["trackers"] = dict(self.tracker.ids)
        if unvalidated is not None:
            meta["unvalidated"] = unvalidated
        self.checkpointer.save(self.progressed.num_steps, self.parts, meta=meta, metrics=new)
        self._note_published()

    def publish(self, *, wait: bool = False) -> None:
        """Publish what a thread has written. Every rank calls it after each step, and waits before a run ends."""
        if self.checkpointer is None:
            return
        if (self.checkpointer.wait() if wait else self.checkpointer.poll()) is not None:
            self._note_published()

    def _note_published(self) -> None:
        assert self.checkpointer is not None
        assert self.run_dir is not None
        if self.checkpointer.published is None:
            return
        self.newest = self.checkpointer.published
        if not self.run_dir.saved:
            on_main(self.world, self.run_dir.mark_saved)
            self.run_dir.saved = True

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Record signals, if anything can be saved, and watch the time limit."""
        saves, limit_s = self.choice.path is not False, self.choice.options.max_seconds
        if not saves and limit_s is None:
            yield  # nothing can end the run early
            return
        with Interruption(self.world, max_seconds=limit_s, signals=saves) as self.interruption:
            yield

    def leave(self) -> NoReturn:
        """Record that this attempt ends here on request, and end it. Every rank calls it.

        Raises:
            Interrupted: always.
        """
        self.publish(wait=True)
        run, interruption = self.run_dir, self.interruption
        assert interruption is not None
        if run is not None:
            on_main(self.world, lambda: run.mark_interrupted(interruption.reason, self.progressed.num_steps))
        interruption.leave()

    @property
    def newest_text(self) -> str:
        """Return which checkpoint a stopping run leaves."""
        if self.newest is None:
            return "No checkpoint has been written yet" if self.checkpointer else "run=False writes no checkpoint"
        return f"The newest checkpoint, {self.newest}, is older and intact"

    def finish(self, values: Mapping[str, float]) -> None:
        """Record the final values: the run is not written again. Every rank calls it."""
        run = self.run_dir
        self.publish(wait=True)
        self.flush()  # what a hook has logged since the last checkpoint: a finished run takes no lines
        if run is not None:
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}  # JSON lacks NaN
            on_main(self.world, lambda: run.finish({**finite, "num_steps": self.progressed.num_steps}))
