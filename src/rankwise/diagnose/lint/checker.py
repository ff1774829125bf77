"""From paths to findings: files are read, rules asked, comments obeyed."""

from __future__ import annotations

import ast
import contextlib
import gc
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankwise.diagnose.lint.analysis.launch_lines import LaunchPlace, read_launch_file
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last
from rankwise.diagnose.lint.analysis.scopes import Scope
from rankwise.diagnose.lint.analysis.walk import read_module
from rankwise.diagnose.lint.catalogue import RULES
from rankwise.diagnose.lint.inputs import SourceFile, find_files, read_source
from rankwise.diagnose.lint.record import Finding, Hit, Rule
from rankwise.diagnose.lint.settings import Settings
from rankwise.diagnose.lint.suppression import UNUSED, apply_comments, uses_noqa

# `import a.b`, `from a.b import c`
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import\b([^#\n]*))?", re.MULTILINE)
_WORD = re.compile(r"\w+")
_MOST_FILES = 2000
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that could not be read or parsed."""

    file: str
    line: int
    message: str


@dataclass(slots=True)
class Report:
    """What a run of the linter has found. Findings are sorted by file and place."""

    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    num_files: int = 0
    num_lines: int = 0
    sources: dict[str, SourceFile] = field(default_factory=dict)
    noqa_files: list[str] = field(default_factory=list)

    @property
    def exitcode(self) -> int:
        """0 clean, 1 findings, 2 a file could not be checked."""
        return 2 if self.failures else 1 if self.findings else 0


class _Project:
    """The files that were given, for rules that follow an import from one into another."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.paths: dict[str, list[Path]] = {}
        for path in files:
            if path.suffix == ".py":
                stem = path.parent.name if path.name == "__init__.py" else path.stem
                self.paths.setdefault(stem, []).append(path)
        self.read: dict[Path, Module | None] = {}
        self.importers: dict[str, set[tuple[str, Path]]] | None = None

    def finder(self, here: Path) -> Callable[[str], tuple[Module, Scope] | None]:
        """Return what finds a function of another file by its full name, as a file sees it."""

        def find(name: str) -> tuple[Module, Scope] | None:
            module_name, _, function = name.rpartition(".")
            path = self.locate(module_name, here)
            if path is None or path == here:
                return None
            module = self.module(path)
            scope = None if module is None else module.top.functions.get(function)
            return None if module is None or scope is None else (module, scope)

        return find

    def locate(self, name: str, here: Path) -> Path | None:
        """Return the one given file that a module's name can mean."""
        parts = [part for part in name.split(".") if part]
        if not parts:
            return None
        candidates = self.paths.get(parts[-1], [])
        wanted = tuple(parts)

        def fits(path: Path) -> bool:
            words = path.parent.parts if path.name == "__init__.py" else (*path.parent.parts, path.stem)
            return words[-len(wanted) :] == wanted

        found = [path for path in candidates if fits(path)]
        near = [path for path in found if path.parent == here.parent]
        chosen = near or found
        return chosen[0] if len(chosen) == 1 else None

    def module(self, path: Path) -> Module | None:
        """Read a file once; None where it does not parse."""
        if path not in self.read:
            try:
                module = self.read[path] = read_module(str(path), read_source(path).source)
                module.find_function = self.finder(path)
            except (OSError, SyntaxError, ValueError, RecursionError):
                self.read[path] = None
        return self.read[path]

    def users(self, here: Path) -> list[Module]:
        """Return the given files that import one; whose imports may mean it is read off all texts once."""
        paths = [path for listed in self.paths.values() for path in listed]
        for path in paths if self.importers is None and len(paths) <= _MOST_FILES else ():
            self.importers = self.importers or {}
            with contextlib.suppress(OSError, ValueError):
                for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
                    joint = "" if module.endswith(".") else "."
                    for name in (module, *(f"{module}{joint}{word}" for word in _WORD.findall(names))):
                        if last(name) in self.paths:
                            self.importers.setdefault(last(name), set()).add((name, path))
        stem = here.parent.name if here.name == "__init__.py" else here.stem
        listed = (self.importers or {}).get(stem, ())
        found = {path for name, path in listed if path != here and self.locate(name, path) == here}
        return [module for module in map(self.module, sorted(found)) if module is not None]


@contextlib.contextmanager
def _pause_collector() -> Iterator[None]:
    """Collect no garbage meanwhile: it would walk all trees and tables again and again. A module frees its own."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_pause_collector()
def lint_paths(paths: Sequence[Path | str], settings: Settings | None = None) -> Report:
    """Check files and folders.

    Args:
        paths: files of any kind, and folders, which are walked.
        settings: which rules are asked, and where; by default those of no configuration file.

    Returns:
        The findings, and the files that could not be read.
    """
    settings = settings or Settings()
    files = list(find_files([Path(path) for path in paths], settings))
    project = _Project(path.resolve() for path in files)
    report = Report()
    for path in files:
        try:
            source = read_source(path)
        except (OSError, ValueError) as error:
            report.failures.append(Failure(str(path), 1, f"cannot be read: {error}"))
            continue
        report.num_files += 1
        report.num_lines += source.source.count("\n")
        try:
            real = path.resolve()
            found = check_source(source, settings, project.finder(real), partial(project.users, real))
        except SyntaxError as error:
            line, cell = source.place_of(error.lineno or 1)
            where = "" if cell is None else f"cell {cell}: "
            # the grammar is that of this interpreter, so what a newer one knows looks like a mistake here
            told = f"{where}does not parse with Python {_VERSION}: {error.msg}; if the file is for a newer Python, "
            report.failures.append(Failure(str(path), line, told + "run lint with that Python"))
            continue
        except (ValueError, RecursionError, MemoryError) as error:  # MemoryError: nested too deeply, up to Python 3.12
            report.failures.append(Failure(str(path), 1, f"does not parse: {type(error).__name__}: {error}"))
            continue
        except Exception as error:  # noqa: BLE001  (a bug of a rule costs one file, is said, and the exit code is 2)
            at = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
            report.failures.append(Failure(str(path), 1, f"the linter failed, which is a bug of it: {said}"))
            continue
        if uses_noqa(source):
            report.noqa_files.append(str(path))
        if found:
            report.sources[str(path)] = source
        report.findings += found
    return report


def check_source(
    source: SourceFile,
    settings: Settings | None = None,
    find_function: Callable[[str], tuple[Module, Scope] | None] | None = None,
    find_users: Callable[[], list[Module]] = list,
) -> list[Finding]:
    """Check one text.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it holds null bytes.
    """
    settings = settings or Settings()
    rules = settings.rules_for(source.path, RULES)
    if source.launch is not None:
        file = read_launch_file(source.path, source.source, source.launch)
        pairs = [(rule, hit) for rule in rules if rule.lines for hit in rule.lines(file)]
        module = Module(source.path, source.source, ast.Module([], []))
    else:
        module = read_module(source.path, source.source)
        if find_function is not None:
            module.find_function = find_function
        module.find_users = find_users
        pairs = [(rule, hit) for rule in rules if rule.check for hit in rule.check(module)]
    found: dict[tuple[str, int | None, int, int], Finding] = {}
    for rule, hit in pairs:
        made = _finding(source, module, rule, hit)
        found.setdefault((rule.code, made.cell, made.line, made.column), made)
    wanted = [finding for finding in found.values() if settings.wants(finding)]
    kept, unused = apply_comments(source, wanted, settings, RULES)
    kept += [_finding(source, module, UNUSED, hit) for hit in unused]
    module.release()
    for part in source.written:
        try:
            kept += check_source(part, settings, find_function, find_users)
        except SyntaxError:  # a notebook's teacher may leave gaps to fill in; the other cells count all the same
            continue
    return sorted(kept, key=lambda finding: (finding.cell or 0, finding.line, finding.column, finding.rule.code))


def _finding(source: SourceFile, module: Module, rule: Rule, hit: Hit) -> Finding:
    span = (hit.place.start, hit.place.end) if isinstance(hit.place, LaunchPlace) else module.span(hit.place)
    (line, column), (end_line, end_column) = map(module.line_of, span)
    shown, cell = source.place_of(line)
    text = module.source[module.offset(line, 0) :].partition("\n")[0].partition("\r")[0]
    return Finding(
        file=source.path,
        line=shown,
        column=column,
        end_line=shown + end_line - line,
        end_column=end_column,
        rule=rule,
        message=rule.message.format(**hit.values),
        fix=hit.fix if source.fixable else None,
        confidence=hit.confidence or rule.confidence,
        cell=cell,
        source_line=text,
    )
