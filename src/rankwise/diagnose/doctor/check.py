"""One check: what was looked at, how it went, by which evidence, and the mend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["SECTIONS", "Check", "Status", "exit_code", "failed", "measured", "not_run", "passed", "render", "warned"]

Status = Literal["pass", "warn", "fail", "not run"]
# in the order of the report: a cause stands before its effects
SECTIONS = (
    "code", "variables", "host", "network", "devices", "ranks", "group", "data", "one rank", "two ranks", "profile",
    "nccl",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found.

    Attributes:
        section: one of `SECTIONS`.
        name: what was looked at, in a few words.
        status: "not run" is no "pass": nothing is assumed.
        evidence: what was seen, or why it was not run.
        mend: what to do; "" where nothing is to do.
        data: numbers behind the evidence, rows of a table.
    """

    section: str
    name: str
    status: Status
    evidence: str
    mend: str = ""
    data: Sequence[Mapping[str, Any]] = field(default_factory=list)


def passed(section: str, name: str, evidence: str) -> Check:
    """Return a check that went well."""
    return Check(section=section, name=name, status="pass", evidence=evidence)


def measured(section: str, name: str, evidence: str, rows: Sequence[Mapping[str, Any]]) -> Check:
    """Return a check that went well, with what was measured."""
    return Check(section=section, name=name, status="pass", evidence=evidence, data=rows)


def warned(section: str, name: str, evidence: str, mend: str) -> Check:
    """Return a check that found what may hurt."""
    return Check(section=section, name=name, status="warn", evidence=evidence, mend=mend)


def failed(section: str, name: str, evidence: str, mend: str) -> Check:
    """Return a check that found what will not work."""
    return Check(section=section, name=name, status="fail", evidence=evidence, mend=mend)


def not_run(section: str, name: str, why: str, mend: str = "") -> Check:
    """Return a check that could not be made."""
    return Check(section=section, name=name, status="not run", evidence=why, mend=mend)


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if any check failed, else 0."""
    return int(any(check.status == "fail" for check in checks))


def render(checks: Sequence[Check]) -> str:
    """Return the checks as text: failures with their mends stand out, and a count ends it."""
    lines = []
    for section in SECTIONS:
        found = [check for check in checks if check.section == section]
        lines += [section] if found else []
        for check in found:
            lines.append(f"  {check.status:<8} {check.name}: {check.evidence}")
            lines += [f"           -> {check.mend}"] if check.mend else []
            if check.data and "bus_gb_s" in check.data[0]:
                from rankwise.diagnose.doctor.bandwidth import bandwidth_table

                lines += [f"           {line}" for line in bandwidth_table(check.data).splitlines()]
    counts = {status: sum(check.status == status for check in checks) for status in ("fail", "warn", "pass", "not run")}
    lines.append(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    return "\n".join(lines)
