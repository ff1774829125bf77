"""What keeps a finding quiet: ``# rankwise: ignore[RW101] reason``, ``# noqa: RW101``, a baseline of old findings."""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankwise._files import write_named
from rankwise.diagnose.lint.analysis.launch_lines import LaunchPlace
from rankwise.diagnose.lint.inputs import SourceFile
from rankwise.diagnose.lint.record import Edit, Finding, Fix, Hit, Rule, registered
from rankwise.diagnose.lint.settings import Settings, matches
from rankwise.errors import ConfigError

_OURS = re.compile(r"#\s*rankwise:\s*ignore(?P<file>-file)?(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa:\s*(?P<codes>[A-Za-z][\w, ]*)", re.IGNORECASE)
_CODE = re.compile(r"RW\d+")
# what a text holds if one of its comments suppresses a finding: reading tokens takes longer than a rule
_ANY = re.compile(r"#\s*(?:rankwise:\s*ignore|noqa:[^\r\n]*RW\d)", re.IGNORECASE)

UNUSED = Rule(
    "RW901", "unused-suppression", "warning", "high",
    message="this comment suppresses nothing: {codes}",
    why="A comment that outlives its finding hides the next one.",
    example="-import torch  # rankwise: ignore[RW210] we have one process\n+import torch\n",
    ignore="Set report-unused = false in the configuration, while files move between versions of rankwise.",
    fix="safe",
)(None)  # fmt: skip
assert UNUSED in registered()
_VERSION = 1  # of a baseline


@dataclass(slots=True)
class _Comment:
    line: int
    start: int
    end: int
    codes: tuple[str, ...]  # empty: all
    whole_file: bool
    noqa: bool
    used: set[str] = field(default_factory=set)


def apply_comments(
    source: SourceFile, findings: list[Finding], settings: Settings, rules: Sequence[Rule]
) -> tuple[list[Finding], list[Hit]]:
    """Return the findings that no comment on one of their lines suppresses, and the comments that suppress nothing."""
    comments = list(_comments(source))
    if not comments:
        return findings, []
    starts: dict[tuple[int, int | None], list[_Comment]] = {}
    for comment in comments:
        starts.setdefault(source.place_of(comment.line), []).append(comment)
    everywhere = [comment for comment in comments if comment.whole_file]
    kept = []
    for finding in findings:
        lines = range(finding.line, finding.end_line + 1)
        here = [comment for line in lines for comment in starts.get((line, finding.cell), [])] + everywhere
        quiet = [each for each in here if not each.codes or any(matches(finding.rule, code) for code in each.codes)]
        for comment in quiet:
            comment.used |= {code for code in comment.codes if matches(finding.rule, code)} or {"*"}
        if not quiet:
            kept.append(finding)
    asked = settings.rules_for(source.path, rules)
    unused = _unused(source, comments, settings, rules, asked) if settings.report_unused and UNUSED in asked else ()
    return kept, list(unused)


def _unused(
    source: SourceFile, comments: Iterable[_Comment], settings: Settings, rules: Sequence[Rule], asked: Sequence[Rule]
) -> Iterator[Hit]:
    for comment in comments:
        # what was not asked could not be found: such a comment may be needed
        idle = [code for code in comment.codes if code not in comment.used]
        idle = [code for code in idle if all(found in asked for found in rules if matches(found, code))]
        if (comment.codes and not idle) or (not comment.codes and (comment.used or settings.select)):
            continue
        whole = set(idle) == set(comment.codes) and not comment.noqa
        edit = Edit(len(source.source[: comment.start].rstrip(" \t")), comment.end, "") if whole else None
        fix = Fix("remove the comment", (edit,)) if edit else None
        place = LaunchPlace(comment.start, comment.end, "")
        yield Hit(place, {"codes": ", ".join(idle) or "no finding on this line"}, fix)


def _comments(source: SourceFile) -> Iterator[_Comment]:
    """Yield the suppressing comments. Tokens are read only where the text could hold one."""
    if not _ANY.search(source.source):
        return
    for line, start, comment in _comment_spans(source):
        end = start + len(comment)
        if ours := _OURS.search(comment):
            codes = tuple(code.strip() for code in (ours["codes"] or "").split(",") if code.strip())
            yield _Comment(line, start + ours.start(), end, codes, bool(ours["file"]), noqa=False)
        elif (noqa := _NOQA.search(comment)) and (codes := tuple(_CODE.findall(noqa["codes"]))):
            yield _Comment(line, start + noqa.start(), end, codes, whole_file=False, noqa=True)


def _comment_spans(source: SourceFile) -> Iterator[tuple[int, int, str]]:
    lines = _lines(source.source)
    starts = [0, *itertools.accumulate(len(line) for line in lines)]
    if source.launch is not None:
        for number, line in enumerate(lines, 1):
            column = line.find("#")
            if column >= 0:
                yield number, starts[number - 1] + column, line[column:].rstrip("\r\n")
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.source, newline="").readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], starts[token.start[0] - 1] + token.start[1], token.string
    except tokenize.TokenError as error:  # what `ast` reads and `tokenize` does not
        raise SyntaxError(str(error.args[0])) from None


def _lines(text: str) -> list[str]:
    """Return the lines as Python counts them, with their ends; a form feed ends none."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def uses_noqa(source: SourceFile) -> bool:
    """Whether a file suppresses ours by ``noqa``, which ruff would remove as unknown."""
    return any(comment.noqa for comment in _comments(source))


def add_ignores(source: SourceFile, findings: Iterable[Finding]) -> str:
    """Return the text with a suppressing comment at the end of every line that has findings.

    A line whose end is no place for a comment (inside a string, before a continuation) stays as it is.
    """
    by_line: dict[int, set[str]] = {}
    for finding in findings:
        if finding.rule is not UNUSED:
            by_line.setdefault(finding.end_line, set()).add(finding.rule.code)
    lines = _lines(source.source)
    for number, codes in by_line.items():
        line = lines[number - 1]
        body = line.rstrip("\r\n")
        lines[number - 1] = f"{body}  # rankwise: ignore[{', '.join(sorted(codes))}]{line[len(body) :]}"
        if not _is_comment(replace(source, source="".join(lines)), number):
            lines[number - 1] = line
    return "".join(lines)


def _is_comment(source: SourceFile, number: int) -> bool:
    try:
        if source.launch is None:
            ast.parse(source.source)
        return any(comment.line == number for comment in _comments(source))
    except (SyntaxError, ValueError):
        return False


def fingerprint(finding: Finding) -> str:
    """Return what identifies a finding while lines move: its file, code and the text of its line."""
    text = "\0".join((Path(finding.file).as_posix(), finding.rule.code, " ".join(finding.source_line.split())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_baseline(path: Path, findings: Iterable[Finding]) -> int:
    """Write the findings into a file; return how many.

    Raises:
        ConfigError: the file cannot be written.
    """
    counts: Counter[tuple[str, str, str]] = Counter(
        (Path(found.file).as_posix(), found.rule.code, fingerprint(found)) for found in findings
    )
    entries = [
        {"file": file, "code": code, "fingerprint": mark, "count": counts[file, code, mark]}
        for file, code, mark in sorted(counts)
    ]
    try:
        write_named(path, (json.dumps({"version": _VERSION, "findings": entries}, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"the baseline {str(path)!r} cannot be written: {error.strerror}") from error
    return sum(counts.values())


def read_baseline(path: Path) -> Counter[str]:
    """Read how often each fingerprint is known.

    Raises:
        ConfigError: there is no such file, or it is no baseline of this version.
    """
    try:
        content = json.loads(path.read_bytes())
        version, entries = content["version"], content["findings"]
        known = Counter({entry["fingerprint"]: int(entry["count"]) for entry in entries if version == _VERSION})
    except FileNotFoundError:
        raise ConfigError(f"no baseline {str(path)!r}; `--write-baseline` makes it") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = f"is no baseline, as `--write-baseline` makes it: {type(error).__name__}: {error}"
        raise ConfigError(f"{path} {what}") from None
    if version != _VERSION:
        raise ConfigError(f"{path} is a baseline of version {version}, wanted {_VERSION}: write it anew")
    return known


def without_known(findings: Iterable[Finding], known: Counter[str]) -> list[Finding]:
    """Return the findings that a baseline does not hold; of equal ones, those beyond its count."""
    left = Counter(known)
    kept = []
    for finding in findings:
        mark = fingerprint(finding)
        if left[mark]:
            left[mark] -= 1
        else:
            kept.append(finding)
    return kept
