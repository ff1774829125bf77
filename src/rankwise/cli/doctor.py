"""`rankwise doctor`: does this machine, or this job, have what distributed training needs?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.diagnose.doctor import Check

__all__ = ["doctor_command"]

_Sections = Annotated[list[str] | None, typer.Option(metavar="SECTIONS", help="Names as in the report, with commas.")]


def doctor_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]...", help="Arguments of --script, or more files of --nccl-log."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the probe where nobody launched this one.")] = 2,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="What a probe, or the ranks of a job, have to meet.")
    ] = 60.0,
    data: Annotated[
        str | None,
        typer.Option(metavar="STORE", help="Also measure how fast it is read; may hold options of `data bench`."),
    ] = None,
    script: Annotated[
        str | None, typer.Option(metavar="FILE", help="Lint it, look at this machine, run it on 1 and 2 ranks.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps that --script is run for.")] = 5,
    nccl_log: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read what NCCL_DEBUG=INFO left; %h, %p stand for anything.")
    ] = None,
    only: _Sections = None,
    skip: _Sections = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check variables, host, devices, network, ranks, collectives and data; under a launcher, of the whole job.

    Each check is pass, warn, fail or not run, with what was seen and the mend. No training script is needed.

    Of a job: `rankwise run --nproc 4 -m rankwise doctor`, `srun python -m rankwise doctor`, `torchrun ...`.
    """
    from rankwise.diagnose.doctor import examine, exit_code, render

    sections = _names(only), _names(skip)
    is_main = True
    if script is not None and nccl_log is not None:
        raise ConfigError("--script and --nccl-log are two questions: give one of them")
    if nccl_log is not None:
        checks = _read_logs([nccl_log, *(words or [])])
    elif script is not None:
        from rankwise.diagnose.stages import examine_script

        checks = examine_script(script, words or [], steps=steps, deadline_s=timeout, sections=sections)
    elif words:
        raise ConfigError(f"doctor got {' '.join(words)!r}: words belong to --script FILE or --nccl-log FILE")
    else:
        checks, is_main = examine(ranks=ranks, deadline_s=timeout, data=data, only=sections[0], skip=sections[1])
    if is_main:
        print(json.dumps([asdict(check) for check in checks], indent=1) if as_json else render(checks))
    # other ranks exit with 0: a launcher that sees one fail would end the rank that still prints
    raise typer.Exit(exit_code(checks) if is_main else 0)


def _names(words: list[str] | None) -> list[str]:
    return [name.strip() for word in words or [] for name in word.split(",") if name.strip()]


def _read_logs(words: list[str]) -> list[Check]:
    from rankwise.diagnose.doctor.nccl_judgement import judge_logs
    from rankwise.diagnose.doctor.nccl_log import find_logs, read_logs

    return judge_logs(read_logs(find_logs(words)))
