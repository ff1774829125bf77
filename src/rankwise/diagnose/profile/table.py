"""Format a profile and a scaling run for a terminal."""

from __future__ import annotations

import io
import shutil
from typing import Any

from rich.console import Console
from rich.table import Table

from rankwise.diagnose.profile.parts import PARTS

_HEADS = {"data": "data", "h2d": "to GPU", "optimizer": "optim.", "backward": "backw.", "forward": "forw."}


def profile_text(facts: dict[str, Any]) -> str:
    """Return the content of `profile.json` as a table of milliseconds per step, with the causes of lost time."""
    steps = facts["steps"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rank", "step", *(_HEADS.get(part, part) for part in PARTS), "ready", "score"):
        table.add_column(name, justify="right")
    for row in facts["ranks"]:
        score = "" if row["score"] is None else f"{row['score']:.2f}"
        ready = "" if row["ready_ms"] is None else _ms(row["ready_ms"])
        table.add_row(
            str(row["rank"]), _ms(row["step_ms"]), *(_ms(row["mean_ms"][part]) for part in PARTS), ready, score
        )
    table.add_row("share", "", *(f"{facts['share'][part]:.0%}" for part in PARTS), "", "", style="bold")
    where = f"{facts['world_size']} rank{'s' * (facts['world_size'] > 1)}, {facts['device']}"
    lines = [f"{len(steps)} steps ({steps[0]} to {steps[-1]}) on {where}: milliseconds of a step, by rank", ""]
    lines += [_rendered(table), ""]
    if facts["missing_ranks"]:
        shown = ", ".join(map(str, facts["missing_ranks"][:8])) + ", ..." * (len(facts["missing_ranks"]) > 8)
        lines += [f"no traces of rank {shown}: waiting for these ranks counts as transfer", ""]
    if not facts["findings"]:
        lines.append("nothing costs enough to change it")
    for finding in facts["findings"]:
        cost = "" if finding["cost_ms"] is None else f"{finding['cost_ms']:.1f} ms a step: "
        lines += [f"{finding['cause']:14} {cost}{finding['text']}", f"{'':14} change: {finding['change']}"]
    if facts["sweep"] is not None:
        lines += ["", *_sweep_lines(facts["sweep"])]
    return "\n".join(lines)


def _sweep_lines(sweep: dict[str, Any]) -> list[str]:
    first = sweep["values"][0]["value"]
    lines = [f"{sweep['setting']}, median step of {sweep['repeats']} runs each, in random order:"]
    for row in sweep["values"]:
        said = row["verdict"] or ("" if row["value"] == first else f"no verdict: within the noise of {first:g}")
        lines.append(
            f"  {row['value']:>7g}  {_ms(row['step_ms'])} ms  ({_ms(row['low_ms'])} to {_ms(row['high_ms'])})  {said}"
        )
    return [line.rstrip() for line in lines]


def scaling_text(facts: dict[str, Any]) -> str:
    """Return the content of `scaling.json` as a table, with a verdict line for each size."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ranks", facts["unit"], "quartiles", "efficiency", "quartiles"):
        table.add_column(name, justify="right")
    table.add_column("", overflow="fold")
    for row in facts["sizes"]:
        between = "" if row["efficiency"] is None else f"{row['efficiency_low']:.2f} to {row['efficiency_high']:.2f}"
        efficiency = "" if row["efficiency"] is None else f"{row['efficiency']:.2f}"
        quartiles = f"{_rate(row['low'])} to {_rate(row['high'])}"
        table.add_row(str(row["ranks"]), _rate(row["throughput"]), quartiles, efficiency, between, row["text"])
    mode = "" if facts["mode"] is None else f"{facts['mode']} scaling, "
    head = f"{mode}{facts['repeats']} runs of each size in random order, {facts['steps']} steps each"
    return f"{head}\n\n{_rendered(table)}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _rendered(table: Table) -> str:
    out = io.StringIO()
    width = max(100, shutil.get_terminal_size().columns)  # do not cut the table
    Console(file=out, width=width, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").splitlines())
