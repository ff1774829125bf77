"""Scripts that use rankwise: what the project shows is clean; RW701 to RW703 show that misuse of it is found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.diagnose.lint import check_source, lint_paths, source_from_text

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMES = {"python": "block.py", "py": "block.py", "bash": "block.sh", "sh": "block.sh", "yaml": "block.yaml"}
# pages that show mistakes on purpose, and which
SHOWN = {
    "checklist_shown.md": {
        "bad-ddp-kwarg", "collective-in-rank-branch", "nccl-env", "no-sync-without-forward"
    },
    "doctor.md": {"nccl-env"},
}  # fmt: skip
PAGES = [
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "lint_rules.md"),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "README.md",
]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each block of code that lint reads."""
    for found in BLOCK.finditer(page.read_text()):
        if found[1] in NAMES:
            yield NAMES[found[1]], found[2]


def test_every_example_is_clean() -> None:
    """No finding in examples/, but in those whose subject is the mistake."""
    report = lint_paths([ROOT / "examples"])
    assert report.num_files > 10
    assert report.failures == []
    found = [
        f"{one.file}:{one.line} {one.rule.slug}" for one in report.findings if "broken" not in Path(one.file).parts
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_the_pages_is_clean(page: Path) -> None:
    """What a reader copies holds no mistake."""
    found = [one for name, text in blocks(page) for one in check_source(source_from_text(text, name))]
    assert {one.rule.slug for one in found} == SHOWN.get(page.name, set())
