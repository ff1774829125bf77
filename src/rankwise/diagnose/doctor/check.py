"""The result of one check: its subject, status, evidence and solution; and all results as text.

Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests): for an all-reduce of W ranks it is
the algorithm bandwidth (bytes / time) times 2(W-1)/W, so that it is comparable to the bandwidth of one link for any W.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "not run"]
# in the order of the report: causes before their effects
SECTIONS = (
    "code", "variables", "host", "network", "devices", "ranks", "group", "data", "one rank", "two ranks", "profile",
    "nccl",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Attributes:
        section: one of `SECTIONS`.
        name: what was checked, in a few words.
        status: the result; "not run" does not count as "pass".
        evidence: the observation, or why the check was not run.
        mend: what to do; "" for nothing.
        data: numbers behind the evidence, rows of a table.
    """

    section: str
    name: str
    status: Status
    evidence: str
    mend: str = ""
    data: Sequence[Mapping[str, Any]] = field(default_factory=list)


def passed(section: str, name: str, evidence: str, rows: Sequence[Mapping[str, Any]] = ()) -> Check:
    """Return a passed check, with the measurements behind its evidence."""
    return Check(section=section, name=name, status="pass", evidence=evidence, data=rows)


def measured(rows: Sequence[Mapping[str, float]]) -> Check:
    """Return the check with the bandwidths of a sweep, as `collectives.sweep` returns them."""
    told = ", ".join(
        f"{_size(int(row['bytes']))} {row['bus_gb_s']:.3g} GB/s ({row['seconds'] * 1e3:.3g} ms)" for row in rows
    )
    return passed("group", "bandwidth of all_reduce", told, rows)


def warned(section: str, name: str, evidence: str, mend: str) -> Check:
    """Return a check that found a possible problem."""
    return Check(section=section, name=name, status="warn", evidence=evidence, mend=mend)


def failed(section: str, name: str, evidence: str, mend: str) -> Check:
    """Return a check that found an error."""
    return Check(section=section, name=name, status="fail", evidence=evidence, mend=mend)


def not_run(section: str, name: str, why: str, mend: str = "") -> Check:
    """Return a check that could not be run."""
    return Check(section=section, name=name, status="not run", evidence=why, mend=mend)


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if any check failed, else 0."""
    return int(any(check.status == "fail" for check in checks))


def render(checks: Sequence[Check]) -> str:
    """Return the checks as text: failures with their solutions stand out; a count comes last."""
    lines = []
    for section in SECTIONS:
        found = [check for check in checks if check.section == section]
        lines += [section] if found else []
        for check in found:
            lines.append(f"  {check.status:<8} {check.name}: {check.evidence}")
            lines += [f"           -> {check.mend}"] if check.mend else []
            if check.data and "bus_gb_s" in check.data[0]:
                lines += [f"           {line}" for line in _bandwidth_table(check.data).splitlines()]
    counts = {status: sum(check.status == status for check in checks) for status in ("fail", "warn", "pass", "not run")}
    lines.append(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    return "\n".join(lines)


_WIDTH = 30  # width of the longest bar, in characters


def _bandwidth_table(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the sweep as text; bars have a logarithmic scale, from a tenth of the slowest to the fastest."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    low = math.log10(min(row["bus_gb_s"] for row in rows) or 1e-9) - 1
    high = max(math.log10(row["bus_gb_s"] or 1e-9) for row in rows)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("size", "time", "algorithm", "bus"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bus, logarithmic", no_wrap=True, width=_WIDTH)
    for row in rows:
        share = (math.log10(row["bus_gb_s"] or 1e-9) - low) / ((high - low) or 1)
        rates = [f"{row[name]:.3g} GB/s" for name in ("algorithm_gb_s", "bus_gb_s")]
        table.add_row(_size(int(row["bytes"])), f"{row['seconds'] * 1e3:.3g} ms", *rates, Bar(1, 0, share))
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
