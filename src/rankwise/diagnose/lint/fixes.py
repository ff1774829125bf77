"""Files that are changed on request: mended until nothing is left to mend, or given comments that suppress findings."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise._files import write_named
from rankwise.diagnose.lint.checker import Report, check_source
from rankwise.diagnose.lint.inputs import SourceFile, find_files, read_source
from rankwise.diagnose.lint.record import Edit, Finding
from rankwise.diagnose.lint.settings import Settings
from rankwise.diagnose.lint.suppression import add_ignores

_MAX_ROUNDS = 20


def mended(
    source: SourceFile, check: Callable[[SourceFile], list[Finding]], *, unsafe: bool = False
) -> tuple[SourceFile, list[Finding], int]:
    """Apply fixes, check again, and so on until no finding has one.

    Args:
        source: the file.
        check: finds the findings of a text.
        unsafe: also apply fixes that may change what a correct script does.

    Returns:
        The new text, the findings left in it, and how many were mended. A round whose result does not parse is not
        taken: its fixes are left out one by one.
    """
    findings = check(source)
    num_mended = 0
    refused: set[tuple[str, str]] = set()
    for _ in range(_MAX_ROUNDS):
        wanted = [
            finding
            for finding in findings
            if finding.fix is not None and (finding.fix.safe or unsafe) and _key(finding) not in refused
        ]
        chosen = _without_overlaps(wanted)
        if not chosen:
            break
        text = _edited(source.source, [edit for finding in chosen for edit in finding.fix.edits])  # type: ignore[union-attr]
        after = replace(source, source=text, written=())
        if not _parses(after):
            refused |= {_key(finding) for finding in (chosen if len(chosen) == 1 else chosen[:1])}
            continue
        left = check(after)
        # a fix that does not clear its own finding would be applied for ever
        if len(left) >= len(findings):
            refused |= {_key(finding) for finding in chosen}
            continue
        num_mended += len(chosen)
        source, findings = after, left
    return source, findings, num_mended


def _key(finding: Finding) -> tuple[str, str]:
    return finding.rule.code, finding.source_line.strip()


def _without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first of those whose edits touch each other; an edit of two findings that is the same counts once."""
    taken: list[Edit] = []
    kept = []
    for finding in findings:
        assert finding.fix is not None
        edits = finding.fix.edits
        if any(_touch(edit, old) for edit in edits for old in taken if edit != old):
            continue
        taken += edits
        kept.append(finding)
    return kept


def _touch(one: Edit, other: Edit) -> bool:
    if one.start == one.end or other.start == other.end:
        return one.start <= other.end and other.start <= one.end
    return one.start < other.end and other.start < one.end


def _edited(text: str, edits: Iterable[Edit]) -> str:
    ends = "\r\n" if "\r\n" in text else "\n"
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start] + re.sub(r"\r?\n", ends, edit.text) + text[edit.end :]
    return text


def _parses(source: SourceFile) -> bool:
    if source.launch is not None:
        return True
    try:
        ast.parse(source.source)
    except (SyntaxError, ValueError):
        return False
    return True


def difference(path: str, before: str, after: str) -> str:
    """Return a unified diff, "" where nothing has changed; that of an absolute path is for `patch -p1` in "/"."""
    name = path.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def mend_paths(
    paths: Sequence[Path], settings: Settings, *, unsafe: bool, write: bool
) -> Iterator[tuple[Path, str, int]]:
    """Mend files; yield for each that changes its path, the difference and the number of mended findings.

    A file that may not be written stays as it is: its number is 0.

    Args:
        paths: files and folders.
        settings: which rules are asked.
        unsafe: whether unsafe fixes are applied, too.
        write: whether files are changed.
    """
    for path in find_files(paths, settings):
        try:
            source = read_source(path)
            if not source.fixable:
                continue
            after, _, number = mended(source, lambda found: check_source(found, settings), unsafe=unsafe)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # the check that follows reports it
        if after.source != source.source:
            if write and not _is_writable(path):
                yield path, "", 0
                continue
            if write:
                _write(path, after)
            yield path, difference(path.as_posix(), source.source, after.source), number


def add_comments(report: Report) -> tuple[int, list[Path]]:
    """Add a suppressing comment to each line with a finding; return the number of lines, and what is read-only."""
    number, left = 0, []
    for path, source in report.sources.items():
        if source.fixable and not _is_writable(Path(path)):
            left.append(Path(path))
        elif source.fixable:
            found = [finding for finding in report.findings if finding.file == path]
            text = add_ignores(source, found)
            number += sum(old != new for old, new in zip(source.source.split("\n"), text.split("\n"), strict=True))
            _write(Path(path), replace(source, source=text))
    return number, left


def _is_writable(path: Path) -> bool:
    """Whether a file may be written: what nobody may write, root does not replace, either."""
    return bool(path.stat().st_mode & 0o222) and os.access(path, os.W_OK)


def _write(path: Path, source: SourceFile) -> None:
    write_named(path, source.source.encode(source.encoding), mode=path.stat().st_mode & 0o777)
