"""Submit a launch, or a task of `Wrapper`, with submitit, and run it in the batch script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.errors import ConfigError, LaunchError, needs_extra
from rankwise.launch.functions.pickled_call import pack_call
from rankwise.launch.functions.platforms import DEFAULT_LOGS, Platform, make_folder
from rankwise.launch.job import Job
from rankwise.launch.show import parse_show
from rankwise.launch.slurm.allocation import Allocation
from rankwise.launch.slurm.handle import SlurmHandle
from rankwise.launch.slurm.launcher import run_on_nodes
from rankwise.launch.slurm.request import Request
from rankwise.launch.slurm.start import Record
from rankwise.launch.slurm.step import Ending
from rankwise.launch.target import Target

# variables of a job or step; those of the configuration and of the cluster choice stay
_OF_A_JOB = re.compile(r"(SLURM|SLURMD|SRUN|PMI|PMIX)_(?!CONF$|CLUSTERS$|JWT$|TIME_FORMAT$|DEBUG)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """The content of submitit's pickle: the launch, which the batch script on the first node runs.

    Attributes:
        job: the launch.
        request: the resources of the job.
        umask: umask of the submitting process.
        call: the pickled call, None for scripts.
        upon_finish: called on the first node after all ranks have succeeded.
    """

    job: Job
    request: Request
    umask: int
    call: bytes | None = None
    upon_finish: Callable[[], Any] | None = None

    def __call__(self) -> None:
        """Run the launch, write its ending beside the pickle, and exit with its exit code."""
        os.umask(self.umask)
        folder = Path(os.environ["SUBMITIT_FOLDER"].replace("%j", os.environ["SLURM_JOB_ID"]))
        allocation = Allocation.find(os.environ)
        if allocation is None:
            raise LaunchError("this was submitted to Slurm, but it is not a Slurm job with srun")
        job = self.job if self.job.logs is not None else replace(self.job, log_dir=folder / "logs")
        # remove the ending of a run before a requeue: waiting processes must not take it for this run's
        (folder / "ending.json").unlink(missing_ok=True)
        ending = run_on_nodes(
            job,
            allocation,
            max_requeues=self.request.max_requeues,
            call=self.call,
            values=folder,
            container=self.request.container,
            warn_s=self.request.warn_s,
        )
        if ending.requeued:
            sys.exit(ending.exitcode)  # the job will run again: write no ending
        if ending.exitcode == 0 and self.upon_finish is not None:
            ending = _finish(self.upon_finish)
        fields = {"exitcode": ending.exitcode, "interrupted": ending.interrupted, "again": ending.again}
        fields["restarts"] = allocation.restarts  # the run of this ending; Slurm may start another run
        record = None if ending.record is None else asdict(ending.record)
        write_whole(folder / "ending.json", json.dumps({**fields, "record": record}).encode())
        if ending.exitcode:
            sys.exit(ending.exitcode)


def _finish(upon_finish: Callable[[], Any]) -> Ending:
    """Call the user's `upon_finish`; if it raises, the job fails."""
    try:
        upon_finish()
    except BaseException as error:  # noqa: BLE001  (also sys.exit: who waits for the end is told in any case)
        if isinstance(error, SystemExit) and error.code in {None, 0}:
            return Ending()
        what = f"all ranks have succeeded, then upon_finish raised {type(error).__name__}: {error}"
        text = f"{what}\n{traceback.format_exc()}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201
        record = Record(node=0, text=text, exitcode=1, time_s=time.time())
        return Ending(record=record)
    return Ending()


def submit(
    job: Job, request: Request, *, call: bytes | None = None, upon_finish: Callable[[], Any] | None = None
) -> SlurmHandle:
    """Submit a launch to Slurm.

    `run_dir` and paths in the arguments must exist on the nodes. `upon_finish` is called in the job after all ranks
    have succeeded.

    Raises:
        ConfigError: Slurm rejects the job, or a value is invalid.
        MissingExtraError: submitit is not installed.
        LaunchError: Slurm's commands are not installed.
    """
    request.check(job)
    executor = _executor(request)
    from submitit.core.utils import FailedJobError

    with _apart_from_here() as umask:
        submitted = Submitted(
            job=replace(job, num_ranks=request.ranks_per_node, run_dir=job.run_dir and job.run_dir.absolute()),
            request=request,
            umask=umask,
            call=call,
            upon_finish=upon_finish,
        )
        request.folder.mkdir(parents=True, exist_ok=True)
        try:
            found = executor.submit(submitted)
        except FailedJobError as error:
            lines = str(error).splitlines() or [""]
            why = ([line for line in lines if "sbatch" in line] or lines)[-1]
            why = why.removeprefix("subprocess.CalledProcessError: ")
            raise ConfigError(f"Slurm refuses the job ({request.described}): {why}") from error
    handle = SlurmHandle(
        job_id=found.job_id,
        folder=found.paths.folder,
        name=request.name,
        num_ranks=request.nodes * request.ranks_per_node,
        run_dir=None if job.run_dir is None else job.run_dir.absolute(),
    )
    try:
        handle.remember()
    except OSError as error:  # the job is in the queue: its number must reach the user
        what = f"`rankwise jobs` will not know job {handle.job_id}: {error}"
        print(f"rankwise: {what}; set XDG_STATE_HOME to a folder that the nodes share", file=sys.stderr)  # noqa: T201
    return handle


def batch_script(request: Request) -> str:
    """Return the batch script that would be submitted.

    Raises:
        MissingExtraError: submitit is not installed.
    """
    executor = _executor(request)
    return str(executor._make_submission_file_text(executor._submitit_command_str, secrets.token_hex(4)))  # noqa: SLF001


def _executor(request: Request) -> Any:
    with needs_extra("submitting Slurm jobs needs submitit: pip install 'rankwise[slurm]'"):
        import submitit
    try:
        executor = submitit.SlurmExecutor(folder=request.folder.absolute() / "%j")
        executor.update_parameters(**request.sbatch_parameters())
    except RuntimeError as error:  # no srun
        raise LaunchError(f"{error}; this needs a machine that can submit Slurm jobs") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"submitit refuses these options: {error}") from error
    return executor


@contextlib.contextmanager
def _apart_from_here() -> Iterator[int]:
    """Yield the umask; meanwhile hide the variables of the current job, which sbatch would pass on to the new job.

    Files get owner-only permissions: the pickles hold the arguments of the user's function.
    """
    umask = os.umask(0o077)
    stale = {name: os.environ.pop(name) for name in list(os.environ) if _OF_A_JOB.match(name)}
    try:
        yield umask
    finally:
        os.environ |= stale
        os.umask(umask)


def start_in_slurm(
    platform: Platform, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SlurmHandle:
    """Submit a task and return immediately.

    With `num_ranks` the job has CPU ranks and no GPUs; else it has one rank for each of `n_gpus_per_node` GPUs.

    Raises:
        ConfigError: Slurm refuses the job.
        LaunchError: Slurm is not installed.
    """
    ranks = platform.num_ranks or platform.n_gpus_per_node
    request = Request(
        folder=Path(platform.console_logs or DEFAULT_LOGS).absolute(),
        name=platform.name,
        partition=platform.partition,
        nodes=platform.n_nodes,
        gpus_per_node=None if platform.num_ranks is not None else platform.n_gpus_per_node,
        ranks_per_node=ranks,
        cpus_per_task=platform.n_cpus_per_node // ranks,
        mem=f"{platform.mem_per_node}G",
        time_min=platform.timeout_min,
        parameters=platform.slurm_additional_parameters or {},
        max_requeues=platform.max_requeues,
    )
    meeting = platform.store_file(secrets.token_hex(8))
    if meeting is not None:
        make_folder(meeting.parent)
    job = Job(
        target=Target(kind="call", name=os.devnull),
        num_ranks=ranks,
        show=parse_show("all"),
        env={} if meeting is None else {"RANKWISE_STORE_FILE": str(meeting)},
    )
    # `upon_finish` is not called on the ranks
    call, _ = pack_call(target, args, kwargs, platform=replace(platform, upon_finish=None))
    return submit(job, request, call=call, upon_finish=platform.upon_finish)
