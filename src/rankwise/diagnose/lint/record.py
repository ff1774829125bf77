"""A rule is one record: the command, its page, `rankwise rule` and every output format are made from it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal

from rankwise.diagnose.lint.analysis.launch_lines import LaunchFile, LaunchPlace
from rankwise.diagnose.lint.analysis.module import Module

Level = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
FixKind = Literal["none", "safe", "unsafe"]

# of examples
HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


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


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything that is known about a rule; called with the function that finds hits, it is in the catalogue.

    Attributes:
        code: stable: RW1 data and order, RW2 model and wrap, RW3 step and gradients, RW4 collectives, RW5 checkpoints,
            RW6 launch and environment, RW7 rankwise's own interface.
        slug: its name in words.
        level: error (it fails or trains something else), warning, or info, which is off unless selected.
        confidence: how sure a finding is; low is off unless asked for.
        message: template of a finding.
        why: what goes wrong.
        example: a program, or launch lines, as a diff: lines of `wrong` after "-", of `right` after "+", of both after
            a blank or, where they begin with another character, as they are.
        ignore: when a finding may be ignored.
        versions: of PyTorch for which the statement was checked.
        fix: whether its findings can be mended by `--fix` (safe) or `--unsafe-fixes`.
        language: of the examples.
        lines: finds it in launch lines, None for Python only.
        check: finds it in Python, None for launch lines only.
    """

    code: str
    slug: str
    level: Level
    confidence: Confidence
    _: KW_ONLY
    message: str
    why: str
    example: str
    ignore: str = "never."
    versions: str = "2.8 to 2.13"
    fix: FixKind = "none"
    language: Literal["python", "bash"] = "python"
    lines: Callable[[LaunchFile], Iterator[Hit]] | None = None
    check: Check | None = None

    def __call__(self, check: Check | None) -> Rule:
        """Return it with its function, and register it."""
        made = replace(self, check=check)
        taken = {made.code, made.slug} & {name for old in _REGISTERED.values() for name in (old.code, old.slug)}
        assert not taken, taken
        _REGISTERED[made.code] = made
        return made

    @property
    def wrong(self) -> str:
        """The example in which the rule finds something."""
        return self._without("+")

    @property
    def right(self) -> str:
        """The example as it should be."""
        return self._without("-")

    def _without(self, mark: str) -> str:
        lines = (line for line in self.example.strip("\n").split("\n") if not line.startswith(mark))
        return "".join(f"{line[1:] if line[:1] in {' ', '+', '-'} else line}\n" for line in lines)


_REGISTERED: dict[str, Rule] = {}


def registered() -> tuple[Rule, ...]:
    """Return the rules that were made so far, by code."""
    return tuple(_REGISTERED[code] for code in sorted(_REGISTERED))


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
