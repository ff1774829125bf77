"""Every rule finds its wrong example, and is silent about the right one and about what only looks like it."""

import runpy
from pathlib import Path

import pytest

from rankwise.diagnose.lint import RULES, Settings, check_source, source_from_text
from rankwise.diagnose.lint.fixes import mended

LOOK_ALIKES = {
    code: text
    for file in (
        "lookalikes.py",
        "lookalikes_apart.py",
        "lookalikes_launch.py",
        "lookalikes_shared.py",
        "lookalikes_step.py",
    )
    for code, text in runpy.run_path(str(Path(__file__).with_name(file)))["LOOK_ALIKES"].items()
}
ALL = Settings(select=("ALL",), confidence="low")
IDS = [f"{rule.code}-{rule.slug}" for rule in RULES]


def checked(rule, text):
    name = "script.py" if rule.language == "python" else "run.sh"
    return check_source(source_from_text(text, name), ALL)


def on_by_default(found):
    return found.rule.level != "info" and found.confidence != "low"


def check_all(source):
    return check_source(source, Settings(select=("ALL",), confidence="low"))


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_wrong_right_and_look_alike(rule):
    """Found in the wrong example, alone among warnings; nothing in the right one; silent about its look-alike."""
    wrong = checked(rule, rule.wrong)
    assert any(found.rule is rule for found in wrong)
    assert {found.rule.code for found in wrong if on_by_default(found)} <= {rule.code}
    right = checked(rule, rule.right)
    assert [found for found in right if found.rule is rule or on_by_default(found)] == []
    assert [found for found in checked(rule, LOOK_ALIKES[rule.code]) if found.rule is rule] == []


@pytest.mark.parametrize("rule", [r for r in RULES if r.fix != "none"], ids=lambda r: r.code)
def test_a_fix_clears_its_finding(rule):
    """The fixed text parses, the finding is gone, and nothing new is found."""
    name = "script.py" if rule.language == "python" else "run.sh"
    only = Settings(select=(rule.code, "RW210"), confidence="low")  # a comment about RW210 is idle where it was asked
    source = source_from_text(rule.wrong, name)
    after, left, number = mended(source, lambda text: check_source(text, only), unsafe=rule.fix == "unsafe")
    assert number >= 1
    assert left == []
    assert [found for found in checked(rule, after.source) if on_by_default(found)] == []


@pytest.mark.parametrize("rule", [r for r in RULES if r.fix != "none" and r.language == "python"], ids=lambda r: r.code)
@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("    ", "\t")])
def test_a_fix_keeps_ends_of_lines_and_tabs(rule, old, new):
    """What a fix inserts is written as the rest of the file is."""
    after, _, number = mended(source_from_text(rule.wrong.replace(old, new)), check_all, unsafe=True)
    assert number >= 1
    assert old not in after.source.replace(new, "")


@pytest.mark.parametrize("rule", [r for r in RULES if r.fix == "none"], ids=lambda r: r.code)
def test_a_rule_without_fix_offers_none(rule):
    """The record tells the truth about fixes."""
    assert all(found.fix is None for found in checked(rule, rule.wrong) if found.rule is rule)


def test_every_record_is_complete():
    """Codes are unique and belong to a family; no text is missing; look-alikes are those of the rules."""
    assert set(LOOK_ALIKES) == {rule.code for rule in RULES}
    assert len({rule.slug for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.code[:3] == "RW" + rule.code[2]
        assert rule.code[2] in "12345679"
        assert all((rule.message, rule.why, rule.wrong.strip(), rule.right.strip(), rule.ignore)), rule.code
