"""The numbers of bench/lint_accuracy.py are right on invented labels; the labels kept here name known rules."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankwise.diagnose.lint.catalogue import RULES

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_accuracy", HERE.parents[2] / "bench" / "lint_accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lint_accuracy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def script(*labels: tuple[str, int], doubtful: tuple[tuple[str, int], ...] = ()) -> dict[str, Any]:
    def listed(pairs: tuple[tuple[str, int], ...]) -> list[dict[str, Any]]:
        return [{"slug": slug, "lines": [line]} for slug, line in pairs]

    return {"package": "invented", "path": "train.py", "labels": listed(labels), "doubtful": listed(doubtful)}


def test_a_finding_two_lines_off_is_a_hit_and_three_lines_off_a_miss_and_a_false_alarm(bench: ModuleType) -> None:
    """Precision counts labels hit and findings that no label explains; recall counts labels."""
    outcome = bench.Outcome()
    bench.compare(outcome, script(("a", 10), ("a", 50), ("b", 7)), [("a", 12), ("a", 9), ("a", 53), ("b", 7)])
    of_a, total = outcome.scores["a"], outcome.total()
    assert (of_a.hits, of_a.misses, of_a.alarms) == (1, 1, 1)
    assert (total.hits, total.misses, total.alarms) == (2, 1, 1)
    assert (total.precision, total.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert outcome.missed == ["invented/train.py:50 a"]
    assert outcome.false == ["invented/train.py:53 a"]


def test_what_is_doubtful_counts_neither_way_and_another_rule_at_its_line_does(bench: ModuleType) -> None:
    """A doubtful place is neither a hit nor a miss nor a false alarm, for its own rule only."""
    outcome = bench.Outcome()
    unsure = script(doubtful=(("a", 4),))
    bench.compare(outcome, unsure, [("a", 4)])
    assert (outcome.scores, outcome.clean, outcome.clean_silent) == ({}, 1, 1)
    assert (outcome.total().precision, outcome.total().recall) == (None, None)
    bench.compare(outcome, unsure, [("b", 4)])
    assert (outcome.of("b").alarms, outcome.clean, outcome.clean_silent) == (1, 2, 1)


def test_the_interval_is_that_of_wilson(bench: ModuleType) -> None:
    """Against published values: 0 of 10, 10 of 10, and 81 of 263 (Newcombe 1998)."""
    assert bench.wilson(0, 10) == (pytest.approx(0.0), pytest.approx(0.2775, abs=1e-3))
    assert bench.wilson(10, 10) == (pytest.approx(0.7225, abs=1e-3), pytest.approx(1.0))
    assert bench.wilson(81, 263) == (pytest.approx(0.2553, abs=1e-3), pytest.approx(0.3662, abs=1e-3))
    assert bench.wilson(0, 0) == (0.0, 1.0)


def test_a_script_that_is_not_there_is_left_out_and_said(bench: ModuleType, tmp_path: Path, capsys: Any) -> None:
    """What was not measured counts nowhere."""
    outcome = bench.measure([script(("a", 1)) | {"sha256": "0" * 64}], tmp_path)
    assert (outcome.absent, outcome.clean, outcome.total().misses) == (1, 0, 0)
    assert "not there" in capsys.readouterr().out


def test_content_that_is_not_the_labelled_one_is_refused(bench: ModuleType, tmp_path: Path) -> None:
    """Line numbers of another version of a script would make every number wrong."""
    wrong = script() | {"sha256": "0" * 64, "version": "1"}
    (tmp_path / "invented").mkdir()
    (tmp_path / "invented" / "train.py").write_text("import torch\n")
    with pytest.raises(ValueError, match="wanted the labelled content"):
        bench.measure([wrong], tmp_path)


def test_what_was_found_in_written_scripts_stays_found(bench: ModuleType) -> None:
    """Whoever finds more of their mistakes, or raises fewer false alarms, changes the numbers here and in the page."""
    totals = {number: outcome.total() for number, outcome in bench.measure_written().items()}
    counts = {number: (total.hits, total.misses, total.alarms) for number, total in totals.items()}
    assert counts == {1: (92, 2, 1), 2: (68, 8, 2), 3: (80, 6, 6)}


def test_the_labels_name_rules_that_exist_and_the_scripts_are_held_out_as_told() -> None:
    """Labels stay true to the catalogue: a rule that is renamed is renamed here."""
    scripts = json.loads((HERE / "corpus.json").read_text())["scripts"]
    slugs = {rule.slug for rule in (RULES.values() if isinstance(RULES, dict) else RULES)}
    labels = [label for entry in scripts for label in [*entry["labels"], *entry["doubtful"]]]
    named = {slug for label in labels for slug in (label["slug"], *label.get("also", ()))}
    assert named <= slugs, sorted(named - slugs)
    assert len({(entry["package"], entry["path"]) for entry in scripts}) == len(scripts)
    for number in range(1, 15):
        share = 1 / 3 if number in {1, 2, 14} else 1
        of_round = [entry for entry in scripts if entry["round"] == number]
        held_out = sum(entry["split"] == "held-out" for entry in of_round)
        assert of_round
        assert abs(held_out - len(of_round) * share) < 1
    assert all(line > 0 for entry in scripts for label in entry["labels"] for line in label["lines"])
