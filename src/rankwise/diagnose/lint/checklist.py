"""The 84 statements of a guide, held against a script: found, clear, or not visible from code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from rankwise.diagnose.lint.claims import CLAIMS, Claim
from rankwise.diagnose.lint.record import Finding

__all__ = ["Item", "checklist_page", "checklist_text", "items_of"]

_LOOKS = {
    "guard": "`Trainer(guard=...)` looks at it in a run: {}",
    "doctor": "`rankwise doctor`: {}",
    "command": "`rankwise {}`",
    "page": "docs/{}.md",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A statement, and what was found of it."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """Found, clear (its rules found nothing), or not visible: no rule looks at it."""
        if self.findings:
            return "found"
        return "clear" if any(name.startswith("RW") for name in self.claim.covers) else "not visible"

    @property
    def looks(self) -> tuple[str, ...]:
        """What looks at it beside the rules, in words."""
        named = (name.partition(":") for name in self.claim.covers if not name.startswith("RW"))
        return tuple(_LOOKS[kind].format(name) for kind, _, name in named)


def items_of(findings: Iterable[Finding]) -> list[Item]:
    """Return the checklist for the findings of a run with all rules."""
    found = list(findings)
    return [Item(claim, tuple(one for one in found if one.rule.code in claim.covers)) for claim in CLAIMS]


def checklist_text(items: Iterable[Item], output_format: str) -> str:
    """Return the list as text, a line or more per statement, or as JSON."""
    if output_format == "json":
        return json.dumps({"checklist": [_as_json(item) for item in items]}, indent=1)
    lines = []
    for item in items:
        claim = item.claim
        truth = f" ({claim.verdict}: {claim.truth})" if claim.truth else ""
        lines.append(f"{claim.number:2}  {item.state:11}  {claim.says}{truth}")
        lines += [f"    {one.file}:{one.line}: {one.rule.code} {one.rule.slug}" for one in item.findings]
        if item.state == "not visible":
            lines.append(f"    {'; '.join(item.looks)}")
    return "\n".join(lines)


def _as_json(item: Item) -> dict[str, object]:
    found = [{"file": one.file, "line": one.line, "code": one.rule.code} for one in item.findings]
    claim = item.claim
    return {
        "number": claim.number,
        "says": claim.says,
        "verdict": claim.verdict,
        "truth": claim.truth,
        "state": item.state,
        "findings": found,
        "looks": list(item.looks),
    }


_HEAD = """# A guide's 84 statements, and what looks at each

Made by `python docs/build_rules.py` from the records of `rankwise lint`; a test keeps both equal. The statements are
those of a widely read guide to DistributedDataParallel, in our words; "true" and the like are for PyTorch 2.8 to 2.13.
`rankwise lint --checklist PATH...` holds a script against them: *found* (with the places), *clear* (the rules about it
found nothing) or *not visible* from code, with what looks at it then. A rule that found nothing is no proof: see
[how often lint is right](lint_accuracy.md).

What is wrong is shown by [executed examples](checklist_shown.md), on two ranks.

| no. | statement of the guide | verdict | correction or addition | checked by |
|---|---|---|---|---|
"""


def checklist_page() -> str:
    """Return docs/checklist.md."""
    rows = []
    for claim in CLAIMS:
        looks = ", ".join(_linked(name) for name in claim.covers)
        rows.append(f"| {claim.number} | {claim.says} | {claim.verdict} | {claim.truth} | {looks} |")
    return _HEAD + "\n".join(rows) + "\n"


def _linked(name: str) -> str:
    kind, _, rest = name.partition(":")
    if not rest:
        return name
    if kind == "page":
        return f"[{rest}]({rest}.md)"
    return {"guard": f"[guard](guard.md) `{rest}`", "doctor": f"[doctor](doctor.md) *{rest}*"}.get(
        kind, f"`rankwise {rest}`"
    )
