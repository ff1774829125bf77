"""Findings as text, JSON, SARIF and annotations; a rule as text, and the page of all rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rankwise._version import __version__
from rankwise.diagnose.lint.checker import Report
from rankwise.diagnose.lint.inputs import SourceFile
from rankwise.diagnose.lint.record import Finding, Rule
from rankwise.diagnose.lint.suppression import fingerprint

_COLOURS = {"error": "\x1b[31;1m", "warning": "\x1b[33;1m", "info": "\x1b[36;1m"}
_PLAIN = "\x1b[0m"


def to_text(report: Report, output_format: str, *, colours: bool = False) -> str:
    """Return a report in one of `FORMATS`."""
    if output_format == "full":
        return _full(report, colours=colours)
    return {"concise": _concise, "json": _json, "sarif": _sarif, "github": _github}[output_format](report)


def _place(finding: Finding) -> str:
    cell = "" if finding.cell is None else f"cell {finding.cell}:"
    return f"{finding.file}:{cell}{finding.line}:{finding.column}"


def _concise(report: Report) -> str:
    lines = [f"{_place(found)}: {found.rule.code} {found.rule.slug}: {found.message}" for found in report.findings]
    return "\n".join([*lines, *_summary(report)])


def _full(report: Report, *, colours: bool) -> str:
    parts = []
    for found in report.findings:
        paint, plain = (_COLOURS[found.rule.level], _PLAIN) if colours else ("", "")
        head = f"{paint}{found.rule.level}[{found.rule.code}]{plain} {found.rule.slug}: {found.message}"
        lines = [head, f" --> {_place(found)}", *_frame(found, report.sources.get(found.file))]
        if found.fix is not None:
            option = "--fix" if found.fix.safe else "--unsafe-fixes"
            lines.append(f" help: {found.fix.message} ({option})")
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, *_summary(report)])


def _frame(found: Finding, source: SourceFile | None) -> list[str]:
    """Return the lines around a finding, its own marked by carets."""
    if source is None:
        return []
    lines = re.split(r"\r\n|\r|\n", source.source)
    first = next((start for start, cell in source.cells if cell == found.cell), 1)
    number = found.line + first - 1
    width = len(str(found.line + 1))
    shown = []
    for at in range(max(first, number - 1), min(number + 1, len(lines)) + 1):
        text = lines[at - 1].rstrip().replace("\t", " ")
        shown.append(f"{at - first + 1:>{width}} | {text}".rstrip())
        if at == number:
            end = found.end_column if found.end_line == found.line else len(text) + 1
            shown.append(f"{'':>{width}} | {'':>{found.column - 1}}{'^' * max(1, end - found.column)}")
    return shown


def _summary(report: Report) -> list[str]:
    lines = [f"{failure.file}:{failure.line}: {failure.message}" for failure in report.failures]
    counts = [
        f"{number} {level}{'s' if number > 1 and level != 'info' else ''}"
        for level in ("error", "warning", "info")
        if (number := sum(found.rule.level == level for found in report.findings))
    ]
    files = f"{report.num_files} file{'' if report.num_files == 1 else 's'}"
    lines.append(f"{', '.join(counts) or 'nothing found'} in {files}")
    return lines


def _json(report: Report) -> str:
    return json.dumps({"findings": [_as_dict(found) for found in report.findings]}, indent=1)


def _as_dict(found: Finding) -> dict[str, Any]:
    fix = None
    if found.fix is not None:
        edits = [{"start": edit.start, "end": edit.end, "text": edit.text} for edit in found.fix.edits]
        fix = {"message": found.fix.message, "safe": found.fix.safe, "edits": edits}
    made = {
        "file": found.file,
        "line": found.line,
        "column": found.column,
        "code": found.rule.code,
        "slug": found.rule.slug,
        "level": found.rule.level,
        "message": found.message,
        "fix": fix,
    }
    return made if found.cell is None else {**made, "cell": found.cell}


_SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def _sarif(report: Report) -> str:
    rules = sorted({found.rule.code: found.rule for found in report.findings}.values(), key=lambda rule: rule.code)
    results = [_sarif_result(found, [rule.code for rule in rules]) for found in report.findings]
    notes = [
        {
            "level": "error",
            "message": {"text": failure.message},
            "locations": [_sarif_place(failure.file, {"startLine": failure.line})],
        }
        for failure in report.failures
    ]
    run = {
        "tool": {
            "driver": {"name": "rankwise", "version": __version__, "rules": [_sarif_rule(rule) for rule in rules]}
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
        "results": results,
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.slug,
        "shortDescription": {"text": rule.slug.replace("-", " ")},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule_text(rule)},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
        "properties": {"confidence": rule.confidence, "tags": ["distributed training"]},
    }


def _sarif_place(file: str, region: dict[str, int]) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, "region": region}}


def _uri(file: str) -> str:
    """Return a path as RFC 3986 wants it: blanks and letters beyond ASCII escaped."""
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _sarif_result(found: Finding, codes: Sequence[str]) -> dict[str, Any]:
    region = {
        "startLine": found.line,
        "startColumn": found.column,
        "endLine": found.end_line,
        "endColumn": found.end_column,
    }
    place = _sarif_place(found.file, region)
    if found.cell is not None:  # the region counts inside a cell; the lines of the file are those of its JSON
        place["logicalLocations"] = [{"name": f"cell {found.cell}", "kind": "cell"}]
    made: dict[str, Any] = {
        "ruleId": found.rule.code,
        "ruleIndex": codes.index(found.rule.code),
        "level": _SARIF_LEVELS[found.rule.level],
        "message": {"text": found.message},
        "locations": [place],
        "partialFingerprints": {"rankwise/v1": fingerprint(found)},
    }
    if found.fix is not None:
        replacements = [
            {
                "deletedRegion": {"charOffset": edit.start, "charLength": edit.end - edit.start},
                "insertedContent": {"text": edit.text},
            }
            for edit in found.fix.edits
        ]
        change = {"artifactLocation": {"uri": _uri(found.file)}, "replacements": replacements}
        made["fixes"] = [{"description": {"text": found.fix.message}, "artifactChanges": [change]}]
    return made


def _github(report: Report) -> str:
    words = {"error": "error", "warning": "warning", "info": "notice"}
    lines = [
        f"::{words[found.rule.level]} file={_escaped(found.file, property_too=True)},line={found.line},"
        f"col={found.column},endLine={found.end_line},endColumn={found.end_column},"
        f"title={found.rule.code} {found.rule.slug}::{_escaped(found.message)}"
        for found in report.findings
    ]
    lines += [
        f"::error file={_escaped(failure.file, property_too=True)},line={failure.line}::{_escaped(failure.message)}"
        for failure in report.failures
    ]
    return "\n".join(lines)


def _escaped(text: str, *, property_too: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_too else text


FORMATS = ("full", "concise", "json", "sarif", "github")


def rule_text(rule: Rule) -> str:
    """Return all that a rule's record says, for a terminal."""
    fix = {"none": "no fix", "safe": "fixed by --fix", "unsafe": "fixed by --unsafe-fixes"}[rule.fix]
    default = "off unless selected" if rule.level == "info" or rule.confidence == "low" else "on"
    wrong, right = (
        "\n".join(f"    {line}".rstrip() for line in text.rstrip().split("\n")) for text in (rule.wrong, rule.right)
    )
    return "\n".join(
        (
            f"{rule.code} {rule.slug}",
            f"{rule.level}, confidence {rule.confidence}, {default}, {fix}, PyTorch {rule.versions}",
            f"\n{rule.why}",
            f"\nWrong:\n\n{wrong}",
            f"\nRight:\n\n{right}",
            f"\nIgnore it when: {rule.ignore}",
        )
    )


_FAMILIES = {
    "1": "Data and order",
    "2": "Model and wrap",
    "3": "Step and gradients",
    "4": "Collectives and tests of the rank",
    "5": "Checkpoints",
    "6": "Launch and environment",
    "7": "rankwise's own interface",
    "9": "Comments of the linter",
}
_FIXES = {"none": "", "safe": "`--fix`", "unsafe": "`--unsafe-fixes`"}
_HEAD = """# The rules of `rankwise lint`

Made from the rules' records by `python docs/build_rules.py`; a test keeps both equal, and runs every example.
How to use them: [lint](lint.md). Rules of level info, and of low confidence, are off unless they are selected by name.
"""


def rules_page(rules: Iterable[Rule]) -> str:
    """Return the page: a table of all rules, then each of them by family."""
    listed = list(rules)
    rows = [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.slug}) | {rule.slug} | {rule.level} | {rule.confidence} "
        f"| {_FIXES[rule.fix]} |"
        for rule in listed
    ]
    parts = [_HEAD, "| code | slug | level | confidence | fix |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"]
    for digit, title in _FAMILIES.items():
        family = [rule for rule in listed if rule.code[2] == digit]
        if family:
            parts += [f"## {title}\n", *map(_section, family)]
    return "\n".join(parts)


def _section(rule: Rule) -> str:
    fence = "py" if rule.language == "python" else "bash"
    message = rule.message.replace("{", "<").replace("}", ">").replace("!r>", ">")
    return "\n".join(
        (
            f"### {rule.code} {rule.slug}\n",
            f"> {rule.level}: `{message}`\n" if message != "<text>" else f"> {rule.level}\n",
            f"{rule.why} (PyTorch {rule.versions}.)\n",
            f"Wrong:\n\n```{fence}\n{rule.wrong}```\n",
            f"Right:\n\n```{fence}\n{rule.right}```\n",
            f"Ignore it when: {rule.ignore}\n",
        )
    )
