"""The result of one check: its subject, status, evidence and solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["SECTIONS", "Check", "Status", "exit_code", "failed", "measured", "not_run", "passed", "render", "warned"]

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


def passed(section: str, name: str, evidence: str) -> Check:
    """Return a passed check."""
    return Check(section=section, name=name, status="pass", evidence=evidence)


def measured(section: str, name: str, evidence: str, rows: Sequence[Mapping[str, Any]]) -> Check:
    """Return a passed check with measurements."""
    return Check(section=section, name=name, status="pass", evidence=evidence, data=rows)


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
                from rankwise.diagnose.doctor.bandwidth import bandwidth_table

                lines += [f"           {line}" for line in bandwidth_table(check.data).splitlines()]
    counts = {status: sum(check.status == status for check in checks) for status in ("fail", "warn", "pass", "not run")}
    lines.append(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    return "\n".join(lines)
