"""Files that are changed on request: mended, or given comments that suppress their findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwise._files import write_named
from rankwise.diagnose.lint.checker import Report, check_source
from rankwise.diagnose.lint.fixes import difference, mended
from rankwise.diagnose.lint.inputs import SourceFile, find_files, read_source
from rankwise.diagnose.lint.settings import Settings
from rankwise.diagnose.lint.suppression import add_ignores

__all__ = ["add_comments", "mend_paths"]


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
            _write(Path(path), SourceFile(path, text, source.launch, (), source.encoding))
    return number, left


def _is_writable(path: Path) -> bool:
    """Whether a file may be written: what nobody may write, root does not replace, either."""
    return bool(path.stat().st_mode & 0o222) and os.access(path, os.W_OK)


def _write(path: Path, source: SourceFile) -> None:
    write_named(path, source.source.encode(source.encoding), mode=path.stat().st_mode & 0o777)
