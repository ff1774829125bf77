"""The 84 statements are complete, what covers each exists, and the list tells a script's truth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from rankwise.cli.app import app
from rankwise.diagnose.lint import CLAIMS, RULES, Settings, check_source, checklist_page, items_of, source_from_text

ROOT = Path(__file__).parents[3]


def test_all_84_are_there_and_say_what_is_so() -> None:
    """Numbers have no gap; what is not plainly true says what is; nothing is said twice."""
    assert [claim.number for claim in CLAIMS] == list(range(1, 85))
    assert len({claim.says for claim in CLAIMS}) == 84
    assert [claim.number for claim in CLAIMS if claim.verdict != "true" and not claim.truth] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.number))
def test_what_covers_a_statement_exists(claim) -> None:
    """Rules by the catalogue, checks of the guard by its table, the others by the command line, sources and pages."""
    codes = {rule.code for rule in RULES}
    doctor = "".join(path.read_text() for path in (ROOT / "src/rankwise/diagnose/doctor").glob("*.py"))
    guard = "".join(path.read_text() for path in (ROOT / "src/rankwise/guard").glob("*.py"))
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert claim.covers
    for name in claim.covers:
        kind, _, rest = name.partition(":")
        exists = {
            "guard": f'"{rest}"' in guard,
            "doctor": f'"{rest}"' in doctor,
            "command": rest in commands,
            "page": (ROOT / "docs" / f"{rest}.md").exists(),
        }.get(kind, name in codes)
        assert exists, name


@pytest.mark.parametrize("number", [claim.number for claim in CLAIMS if claim.verdict == "wrong"])
def test_what_is_wrong_is_shown_or_said(number: int) -> None:
    """Each wrong statement has its number on the page whose examples are executed."""
    shown = (ROOT / "docs" / "checklist_shown.md").read_text().partition("```python")[2]
    assert re.search(rf"(?<![\d.]){number}(?![\d.\]])", shown)


def test_the_page_is_that_of_the_records() -> None:
    """Where this fails: python docs/build_rules.py."""
    assert (ROOT / "docs" / "checklist.md").read_text() == checklist_page()


def test_a_script_is_found_clear_or_not_visible() -> None:
    """One mistake is found under its number; other numbers with rules are clear; those without say what looks."""
    text = "import torch\n\nnet = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"
    found = check_source(source_from_text(text, "train.py"), Settings(select=("ALL",), confidence="low"))
    items = {item.claim.number: item for item in items_of(found)}
    assert items[1].state == "found"
    assert [(one.rule.code, one.line) for one in items[1].findings] == [("RW210", 3)]
    assert items[12].state == "clear"
    assert items[53].state == "not visible"
    assert items[53].looks == ("`rankwise doctor`: collectives",)


def test_the_command_prints_all_of_them(tmp_path: Path) -> None:
    """84 statements, exit code 1 with findings; JSON has the same."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nnet = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n")
    shown = CliRunner().invoke(app, ["lint", "--checklist", str(script)])
    assert shown.exit_code == 1
    assert f"{script}:3: RW210 dataparallel-module" in shown.output
    asked = CliRunner().invoke(app, ["lint", "--checklist", "--output-format", "json", str(script)])
    listed = json.loads(asked.stdout)["checklist"]
    assert [entry["number"] for entry in listed] == list(range(1, 85))
    assert [entry["number"] for entry in listed if entry["state"] == "found"] == [1, 77]
