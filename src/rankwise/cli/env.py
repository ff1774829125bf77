"""`rankwise env`: the environment report for bug reports."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["env_command"]


def env_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Print where a run would run: versions, devices, network, scheduler, variables (secrets masked), limits."""
    from rankwise.diagnose.environment import collect_environment, describe_environment

    facts = collect_environment()
    print(json.dumps(facts, indent=1) if as_json else describe_environment(facts))
