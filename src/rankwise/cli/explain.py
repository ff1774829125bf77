"""`rankwise explain`: explain the messages in a job's logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankwise.errors import ConfigError

__all__ = ["explain_command"]


def explain_command(
    logs: Annotated[list[str] | None, typer.Argument(metavar="LOG...", help="Files, or - for standard input.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="The messages that are known, and leave.")] = False,
) -> None:
    """Explain the error messages in logs of distributed jobs: causes and mends, the root first."""
    from rankwise.diagnose.explain import MESSAGES, explain_logs, render

    if show_list:
        print("\n".join(f"{message.slug:24} {message.source}" for message in MESSAGES))
        return
    if not logs:
        raise ConfigError("explain wants at least one log, or - for standard input; got none")
    findings = explain_logs(Path(log) if log != "-" else sys.stdin.buffer for log in logs)
    if as_json:
        print(json.dumps({"findings": [finding.to_json() for finding in findings]}, indent=2))
    else:
        print(render(findings), end="")
    sys.exit(0 if findings else 1)
