"""The ground rules of the repository that no linter knows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rankwise

ROOT = Path(__file__).parents[1]


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in out.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_changelog_knows_this_version():
    """A release without a line in the changelog does not happen."""
    assert f"## {rankwise.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_are_used():
    """Every package that an extra brings is named somewhere in the source: no extra for code that does not exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {requirement for name, listed in extras.items() if name != "dev" for requirement in listed}
    names = {re.match(r"\w+", requirement).group() for requirement in wanted} - {"rankwise"}
    source = "\n".join(p.read_text() for p in sorted((ROOT / "src").rglob("*.py")))
    assert {"torch", "zarr", "anndata"} <= names
    assert {name for name in names if not re.search(rf"\b{name}\b", source)} == set()


def test_nothing_is_left_unfinished():
    """No marker of work to be done is committed."""
    marker = re.compile(r"#\s*(TODO|FIXME|XXX)\b")
    found = [
        p for p in tracked() if p.suffix == ".py" and p.name != "test_repository.py" and marker.search(p.read_text())
    ]
    assert found == []


def test_files_stay_readable():
    """One idea per file: source files and tests have at most 400 lines."""
    sizes = {p: len(p.read_text().splitlines()) for p in tracked() if p.suffix == ".py"}
    assert {p: n for p, n in sizes.items() if n > 400} == {}


def test_no_script_hides_a_module_of_python():
    """A script's folder comes first on the path of its neighbours: `profile.py` would be taken for Python's own."""
    scripts = [path for folder in ("bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert scripts
    assert [path for path in scripts if path.stem in sys.stdlib_module_names] == []
