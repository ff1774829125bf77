"""Run the ranks of an observed script: without console output, in a run directory and with files of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.launch.failures.outcome import Outcome
from rankwise.launch.job import Job
from rankwise.launch.local.supervisor import supervise
from rankwise.launch.show import parse_show
from rankwise.launch.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its arguments; ``{ranks}`` and ``{dir}`` in them are the number of ranks and a fresh folder.

    Attributes:
        path: the script.
        args: its arguments.
        num_threads: threads per rank; None: as chosen by `rankwise run`.
        timeout_s: time limit of each run; None: none.
    """

    path: str
    args: tuple[str, ...] = ()
    num_threads: int | None = None
    timeout_s: float | None = None


def run_observed(
    module: str, script: Script, *, num_ranks: int, place: Path, env: Mapping[str, str], max_restarts: int = 0
) -> Outcome:
    """Run a script on this machine through a module that installs hooks first; see `torch_hooks.run_script`.

    Args:
        module: the module; it is run with the script's path and arguments.
        script: the script.
        num_ranks: number of ranks.
        place: an existing folder for the run directory ``run`` and the files of ``{dir}``.
        env: environment variables with the module's task.
        max_restarts: how often all ranks are restarted.

    Raises:
        KeyboardInterrupt: the run was stopped from outside.
    """
    words = [word.replace("{ranks}", str(num_ranks)).replace("{dir}", str(place / "files")) for word in script.args]
    job = Job(
        target=Target(kind="module", name=module, args=(script.path, *words)),
        num_ranks=num_ranks,
        max_restarts=max_restarts,
        run_dir=place / "run",
        show=parse_show("none"),
        env=env,
        num_threads=script.num_threads,
        timeout_s=script.timeout_s,
    )
    # the caller tells what went wrong, in the words of its own command
    outcome = supervise(job, tell_last=False)
    if outcome.interrupted is not None:
        raise KeyboardInterrupt
    return outcome
