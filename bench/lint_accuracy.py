"""Precision and recall of `rankwise lint` on scripts that were labelled by reading.

    python bench/lint_accuracy.py --written [--round 1|2|3]
    python bench/lint_accuracy.py FOLDER [--fetch] [--labels tests/diagnose/lint/corpus.json] [--round 1|...|14] [--all]

`--written` takes the scripts that were written for the purpose, in three sets, which are kept with their labels in
tests/diagnose/lint/written_scripts.zip.

The other form takes public scripts, which are not kept. FOLDER holds them as PACKAGE/PATH, or OWNER/REPOSITORY/PATH;
`--fetch` takes what is missing of packages out of the published wheels with `pip download` (nothing is installed or
run). Files of repositories are to be put there by hand; those that are not there are left out, and said. A file whose
SHA-256 is not the labelled one is refused.

A finding is a hit if a label has its slug and a line within 2 of its line; several findings for one label are one hit.
What a label calls doubtful counts neither as a hit nor as a false alarm. Rules, and labels of rules, that the default
does not report (level info) count with `--all` only; rounds 1 to 9 and 14 have no labels for them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.diagnose.lint import lint_paths
from rankwise.diagnose.lint.catalogue import RULES
from rankwise.diagnose.lint.settings import Settings

NEAR_LINES = 2
SPLITS = ("work", "held-out")
ROUNDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
HINTS = frozenset(rule.slug for rule in RULES if rule.level == "info")
TESTS = Path(__file__).parents[1] / "tests" / "diagnose" / "lint"
LABELS = TESTS / "corpus.json"
WRITTEN = TESTS / "written_scripts.zip"


@dataclass(slots=True)
class Score:
    """Counts of one rule, or of all. A ratio over nothing is None, never 1."""

    hits: int = 0
    misses: int = 0
    alarms: int = 0

    @property
    def precision(self) -> float | None:
        """The share of what was reported that is wrong in truth; over labels, so that two findings of one are one."""
        return self.hits / (self.hits + self.alarms) if self.hits + self.alarms else None

    @property
    def recall(self) -> float | None:
        """The share of the labels that was reported."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else None


@dataclass(slots=True)
class Outcome:
    """What came of a set of scripts: counts per slug, and the places to look at."""

    scores: dict[str, Score] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    clean: int = 0
    clean_silent: int = 0

    absent: int = 0

    def of(self, slug: str) -> Score:
        """Return the counts of a rule."""
        return self.scores.setdefault(slug, Score())

    def total(self) -> Score:
        """Return the sum over the rules."""
        all_of = self.scores.values()
        return Score(sum(s.hits for s in all_of), sum(s.misses for s in all_of), sum(s.alarms for s in all_of))


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score; all of [0, 1] where nothing was counted."""
    if not of:
        return 0.0, 1.0
    share, weight = hits / of, z * z / of
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / of + weight / of / 4) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def is_near(label: dict[str, Any], slug: str, line: int) -> bool:
    """Whether a finding is what a label means: its rule, or another one that says the same of that place."""
    near = any(abs(line - wanted) <= NEAR_LINES for wanted in label["lines"])
    return near and slug in (label["slug"], *label.get("also", ()))


def compare(outcome: Outcome, script: dict[str, Any], findings: Iterable[tuple[str, int]]) -> None:
    """Add one script's findings, pairs of slug and line, to an outcome."""
    findings = list(findings)
    name = f"{script['package']}/{script['path']}"
    for label in script["labels"]:
        if any(is_near(label, slug, line) for slug, line in findings):
            outcome.of(label["slug"]).hits += 1
        else:
            outcome.of(label["slug"]).misses += 1
            outcome.missed.append(f"{name}:{label['lines'][0]} {label['slug']}")
    false = 0
    for slug, line in findings:
        if not any(is_near(label, slug, line) for label in [*script["labels"], *script["doubtful"]]):
            false += 1
            outcome.of(slug).alarms += 1
            outcome.false.append(f"{name}:{line} {slug}")
    if not script["labels"]:
        outcome.clean += 1
        outcome.clean_silent += not false


def fetch(scripts: list[dict[str, Any]], folder: Path) -> None:
    """Write the scripts that are missing, out of the wheels that hold them.

    Raises:
        ValueError: a file of a wheel is not the one that was labelled.
    """
    wanted: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for script in scripts:
        if "version" in script and not (folder / script["package"] / script["path"]).exists():
            wanted.setdefault((script["package"], script["version"]), []).append(script)
    options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--quiet"]
    for (package, version), missing in wanted.items():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", *options, "--dest", scratch, f"{package}=={version}"]
            subprocess.run(command, check=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                for script in missing:
                    target = folder / script["package"] / script["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(checked(script, wheel.read(script["path"])))


def checked(script: dict[str, Any], content: bytes) -> bytes:
    """Return a script's content if it is the labelled one.

    Raises:
        ValueError: it is another.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != script["sha256"]:
        raise ValueError(
            f"{script['package']}/{script['path']}: wanted the labelled content (SHA-256 {script['sha256']}), "
            f"found {found}; delete the file and run again with --fetch"
        )
    return content


def measure(scripts: list[dict[str, Any]], folder: Path, *, hints: bool = False) -> Outcome:
    """Lint each script alone, as a user does who gives one file, and compare; with rules of level info or without."""
    outcome, settings = Outcome(), Settings(select=("ALL",)) if hints else None
    for script in scripts:
        path = folder / script["package"] / script["path"]
        if not path.exists():
            outcome.absent += 1
            print(f"not there: {path} (commit {script.get('commit', 'unknown')})")
            continue
        checked(script, path.read_bytes())
        report = lint_paths([path], settings)
        if report.failures:
            print(f"not checked: {script['package']}/{script['path']}: {report.failures[0].message}")
        asked = [label for label in script["labels"] if hints or label["slug"] not in HINTS]
        starts = cell_starts(path)
        found = [(each.rule.slug, starts.get(each.cell, 0) + each.line) for each in report.findings]
        compare(outcome, script | {"labels": asked}, found)
    return outcome


def cell_starts(path: Path) -> dict[int | None, int]:
    """Return how many lines of code stand before each cell of a notebook: labels count lines over all code cells."""
    starts: dict[int | None, int] = {}
    if path.suffix == ".ipynb":
        before = 0
        for number, cell in enumerate(json.loads(path.read_text())["cells"], 1):
            if cell["cell_type"] == "code":
                starts[number] = before
                before += len("".join(cell["source"]).rstrip("\n").split("\n"))
    return starts


def show(title: str, outcome: Outcome) -> None:
    """Print the table of a split and the places where lint and reader differ."""

    def ratio(value: float | None) -> str:
        return "    -" if value is None else f"{value:5.2f}"

    print(f"\n{title}: {outcome.clean_silent} of {outcome.clean} clean scripts silent")
    print(f"{'rule':32} hits missed false  precision recall")
    rows = [*sorted(outcome.scores.items()), ("all", outcome.total())]
    for slug, score in rows:
        counts = f"{score.hits:4} {score.misses:6} {score.alarms:5}"
        print(f"{slug:32} {counts}      {ratio(score.precision)}  {ratio(score.recall)}")
    total = outcome.total()
    for word, of in (("precision", total.hits + total.alarms), ("recall", total.hits + total.misses)):
        low, high = wilson(total.hits, of)
        print(f"{word}: {total.hits} of {of}, 95 % interval {low:.2f} to {high:.2f}")
    if outcome.absent:
        print(f"{outcome.absent} scripts were not there")
    for word, places in (("missed", outcome.missed), ("false", outcome.false)):
        for place in places:
            print(f"{word}: {place}")


def measure_written(sets: Iterable[int] = (1, 2, 3)) -> dict[int, Outcome]:
    """Unpack the written scripts, and measure each set."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(WRITTEN) as archive:
        archive.extractall(scratch)
        scripts = json.loads(archive.read("labels.json"))["scripts"]
        return {n: measure([each for each in scripts if each["round"] == n], Path(scratch)) for n in sets}


def main() -> None:
    """Read the labels, get the scripts, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--written", action="store_true", help="the scripts that were written for the purpose")
    parser.add_argument("--labels", type=Path, default=LABELS)
    parser.add_argument("--fetch", action="store_true", help="download the wheels of missing scripts")
    parser.add_argument("--round", type=int, choices=ROUNDS, help="one round, or written set, only; default all")
    parser.add_argument("--all", action="store_true", help="count rules of level info, too")
    options = parser.parse_args()
    if options.written:
        if options.round and options.round > 3:
            parser.error("the written scripts are sets 1, 2 and 3")
        for number, outcome in measure_written([options.round] if options.round else (1, 2, 3)).items():
            show(f"written set {number}", outcome)
        return
    if options.folder is None:
        parser.error("give the FOLDER of the public scripts, or --written")
    scripts = json.loads(options.labels.read_text())["scripts"]
    if options.fetch:
        fetch(scripts, options.folder)
    for number in [options.round] if options.round else ROUNDS:
        for split in SPLITS:
            chosen = [script for script in scripts if (script["round"], script["split"]) == (number, split)]
            show(f"round {number}, {split}, {len(chosen)} scripts", measure(chosen, options.folder, hints=options.all))


if __name__ == "__main__":
    main()
