"""A rule is one record: the command, its page, `rankwise rule` and every output format are made from it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rankwise.diagnose.lint.analysis.launch_lines import LaunchFile, LaunchPlace
from rankwise.diagnose.lint.analysis.module import Module

__all__ = ["Confidence", "Edit", "Finding", "Fix", "Hit", "Level", "Rule", "registered", "rule"]

Level = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
FixKind = Literal["none", "safe", "unsafe"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the characters [start, end) of the source by a text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that mend one finding together; unsafe where they may change what a correct script does."""

    message: str
    edits: tuple[Edit, ...]
    safe: bool = True


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule has found: the place, and what fills its message.

    Attributes:
        place: the node, or the words of a launch line.
        values: for the template of the rule's message.
        fix: how to mend it.
        confidence: of this hit, where it is not the rule's.
    """

    place: ast.expr | ast.stmt | ast.keyword | ast.alias | LaunchPlace
    values: dict[str, str] = field(default_factory=dict)
    fix: Fix | None = None
    confidence: Confidence | None = None


Check = Callable[[Module], Iterator[Hit]]
LineCheck = Callable[[LaunchFile], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Everything that is known about a rule.

    Attributes:
        code: stable: RW1 data and order, RW2 model and wrap, RW3 step and gradients, RW4 collectives, RW5 checkpoints,
            RW6 launch and environment, RW7 rankwise's own interface.
        slug: its name in words.
        level: error (it fails or trains something else), warning, or info, which is off unless selected.
        confidence: how sure a finding is; low is off unless asked for.
        message: template of a finding.
        why: what goes wrong.
        wrong: a program, or launch lines, in which the rule finds something.
        right: the same as it should be.
        ignore: when a finding may be ignored.
        versions: of PyTorch for which the statement was checked.
        fix: whether its findings can be mended by `--fix` (safe) or `--unsafe-fixes`.
        language: of the examples.
        check: finds it in Python, None for launch lines only.
        check_lines: finds it in launch lines, None for Python only.
    """

    code: str
    slug: str
    level: Level
    confidence: Confidence
    message: str
    why: str
    wrong: str
    right: str
    ignore: str
    versions: str = "2.8 to 2.13"
    fix: FixKind = "none"
    language: Literal["python", "bash"] = "python"
    check: Check | None = None
    check_lines: LineCheck | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding in one file. Lines and columns count from 1; the end is exclusive.

    Attributes:
        cell: of a notebook, from 1; the lines are those inside it.
        source_line: the text of its line, for frames and fingerprints.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    rule: Rule
    message: str
    fix: Fix | None = None
    confidence: Confidence = "high"
    cell: int | None = None
    source_line: str = ""


_REGISTERED: dict[str, Rule] = {}


def rule(
    code: str,
    slug: str,
    level: Level,
    confidence: Confidence,
    *,
    message: str,
    why: str,
    wrong: str,
    right: str,
    ignore: str,
    versions: str = "2.8 to 2.13",
    fix: FixKind = "none",
    language: Literal["python", "bash"] = "python",
    lines: LineCheck | None = None,
) -> Callable[[Check | None], Rule]:
    """Make a rule of a function that finds hits in a module. The arguments are the fields of `Rule`."""

    def register(check: Check | None) -> Rule:
        made = Rule(
            code=code,
            slug=slug,
            level=level,
            confidence=confidence,
            message=message,
            why=why,
            wrong=wrong.strip("\n") + "\n",
            right=right.strip("\n") + "\n",
            ignore=ignore,
            versions=versions,
            fix=fix,
            language=language,
            check=check,
            check_lines=lines,
        )
        taken = {made.code, made.slug} & {name for old in _REGISTERED.values() for name in (old.code, old.slug)}
        assert not taken, taken
        _REGISTERED[code] = made
        return made

    return register


def registered() -> tuple[Rule, ...]:
    """Return the rules that were made so far, by code."""
    return tuple(_REGISTERED[code] for code in sorted(_REGISTERED))
