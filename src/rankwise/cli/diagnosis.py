"""Commands that look and tell: `rankwise env`, `doctor`, `explain`, `watch` and `report`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.run import path_argument, path_option, split_names
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.diagnose.doctor import Check

_Only = Annotated[
    list[str] | None, typer.Option(metavar="SECTIONS", help="Run only these sections, named as in the report; commas.")
]
_Skip = Annotated[
    list[str] | None, typer.Option(metavar="SECTIONS", help="Skip these sections, named as in the report; commas.")
]


def env_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Describe the environment of a run: versions, devices, network, scheduler, variables (secrets masked), limits."""
    from rankwise.diagnose.environment import collect_environment, describe_environment

    facts = collect_environment()
    print(json.dumps(facts, indent=1) if as_json else describe_environment(facts))


def doctor_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]...", help="Arguments for --script, or more files for --nccl-log."),
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=1, help="Number of ranks of the probe, if this command was not started by a launcher.")
    ] = 2,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="Time limit in seconds for a probe, or for the ranks of a job to connect."
        ),
    ] = 60.0,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="STORE", help="Also measure the read rate of this store; may include options of `data bench`."
        ),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Lint this script, check this machine, and run the script on 1 and 2 ranks."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of optimizer steps for which --script runs.")] = 5,
    nccl_log: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Check a log written with NCCL_DEBUG=INFO; %h and %p match any text."),
    ] = None,
    only: _Only = None,
    skip: _Skip = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check variables, host, devices, network, ranks, collectives and data; under a launcher, for the whole job.

    Each check results in pass, warn, fail or not run, with evidence and a fix. Needs no training script.

    To check a job: `rankwise run --nproc 4 -m rankwise doctor`, `srun python -m rankwise doctor`, `torchrun ...`.
    """
    from rankwise.diagnose.doctor import examine, exit_code, render

    sections = split_names(only, "--only", "a section") or (), split_names(skip, "--skip", "a section") or ()
    is_main = True
    if script is not None and nccl_log is not None:
        raise ConfigError("--script and --nccl-log cannot be combined: give one of them")
    if (nccl_log and any(sections)) or (data is not None and (script or nccl_log)):
        raise ConfigError("--script takes no --data, and --nccl-log no --data, --only and --skip: run them separately")
    if nccl_log is not None:
        checks = _read_logs([nccl_log, *(words or [])])
    elif script is not None:
        from rankwise.diagnose.stages import examine_script

        checks = examine_script(script, words or [], steps=steps, deadline_s=timeout, sections=sections)
    elif words:
        raise ConfigError(f"arguments are only valid with --script FILE or --nccl-log FILE, got {' '.join(words)!r}")
    else:
        checks, is_main = examine(ranks=ranks, deadline_s=timeout, data=data, only=sections[0], skip=sections[1])
    if is_main and not checks:
        what = "these sections belong to another use of doctor (--script, --nccl-log, under a launcher)"
        raise ConfigError(f"nothing was checked: {what}")
    if is_main:
        print(json.dumps([asdict(check) for check in checks], indent=1) if as_json else render(checks))
    # other ranks exit with 0: a launcher that sees one fail would end the rank that still prints
    raise typer.Exit(exit_code(checks) if is_main else 0)


def _read_logs(words: list[str]) -> list[Check]:
    from rankwise.diagnose.doctor.nccl_checks import check_logs
    from rankwise.diagnose.doctor.nccl_log import find_logs, read_logs

    return check_logs(read_logs(find_logs(words)))


def explain_command(
    logs: Annotated[
        list[str] | None, typer.Argument(metavar="LOG...", help="Log files, or - for standard input.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the known messages and exit.")] = False,
) -> None:
    """Explain the error messages in logs of distributed jobs, with causes and fixes, the root cause first."""
    from rankwise.diagnose.explain import MESSAGES, explain_logs, render

    if show_list and as_json:
        known = [{"slug": each.slug, "level": each.level, "source": each.source} for each in MESSAGES]
        print(json.dumps({"messages": known}, indent=2))
        return
    if show_list:
        print("\n".join(f"{message.slug:24} {message.source}" for message in MESSAGES))
        return
    if not logs or "" in logs:
        raise ConfigError(
            f"explain needs log files, or - for standard input, got {'an empty name' if logs else 'none'}"
        )
    findings = explain_logs(Path(log) if log != "-" else sys.stdin.buffer for log in logs)
    if as_json:
        print(json.dumps({"findings": [finding.to_json() for finding in findings]}, indent=2))
    else:
        print(render(findings), end="")
    sys.exit(0 if findings else 1)


def watch_command(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            help="Process id of the launcher or of a rank, or a run directory. Default: the only job on this machine.",
        ),
    ] = "",
    slurm: Annotated[
        str | None,
        typer.Option("--slurm", metavar="JOB[.STEP]", help="Inspect a Slurm job instead, on all of its nodes."),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1.0,
            help="Time limit in seconds for the nodes to answer (with --slurm).",
        ),
    ] = 60.0,
    list_jobs: Annotated[bool, typer.Option("--list", help="List the running jobs of this machine and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Inspect a running job once: the stacks and last collectives of each rank, and which rank blocks the others."""
    from rankwise.diagnose.watch.evidence import report
    from rankwise.diagnose.watch.jobs import inspect_run, running_jobs

    if list_jobs:
        if job or slurm is not None:
            raise ConfigError(f"--list lists all jobs of this machine, it takes no job, got {job or slurm!r}")
        names, found = ("pid", "launcher", "command", "run_dir", "idle_s"), running_jobs()
        lines = [f"{j.pid}  {len(j.ranks)} ranks  quiet for {j.idle_s:.0f} s  {j.command[:100]}" for j in found]
        if as_json:
            print(json.dumps([{**{n: getattr(j, n) for n in names}, "ranks": len(j.ranks)} for j in found], indent=1))
        else:
            none = "no job of this user runs on this machine under rankwise run, rankwise.watch() or RANKWISE_WATCH"
            print("\n".join(lines) or none)
        return
    if slurm is None:
        evidence, silent = inspect_run(job), dict[str, str]()
    elif job:
        raise ConfigError(f"give either a job of this machine ({job!r}) or --slurm {slurm}, not both")
    else:
        from rankwise.diagnose.watch.slurm import inspect_slurm_job

        evidence, silent = inspect_slurm_job(slurm, timeout_s)
    verdict, text = report(evidence, f"quiet for {evidence.idle_s:.0f} s")
    text += "".join(f"\nnode {node}: {why}" for node, why in silent.items())
    known = {"verdict": asdict(verdict), **json.loads(evidence.to_json()), "silent_nodes": silent}
    print(json.dumps(known) if as_json else text)


def report_command(
    runs: Annotated[
        list[Path],
        path_argument(metavar="RUN...", help="Run directories; several runs are shown side by side."),
    ],
    out: Annotated[
        Path | None,
        path_option(
            "-o", "--out", metavar="FILE", help="HTML file, - for stdout. Default: report.html in the first run."
        ),
    ] = None,
    lint: Annotated[
        Path | None, path_option(metavar="FILE", help="JSON output of `rankwise lint`. Default: RUN/lint.json.")
    ] = None,
    doctor: Annotated[
        Path | None, path_option(metavar="FILE", help="JSON output of `rankwise doctor`. Default: RUN/doctor.json.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a self-contained HTML report on runs: curves, times, restarts, findings, checkpoints. Runs no code."""
    from rankwise.diagnose.report import write_report

    page = out or runs[0] / "report.html"
    to_stdout = page == Path("-")
    if to_stdout and show:
        raise ConfigError("--open opens a file, but -o - writes to standard output: give -o FILE, or leave out --open")
    found = write_report(runs, Path("/dev/stdout") if to_stdout else page, lint=lint, doctor=doctor)
    for run in found:
        for note in run.notes:
            typer.echo(f"{run.name}: {note}", err=True)
    if not to_stdout:
        print(page)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
