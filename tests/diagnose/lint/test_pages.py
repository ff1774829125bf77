"""The pages of the linter say what it does: the page of rules is their records, shown output is real output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.diagnose.lint import RULES, rules_page

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/lint.md").read_text()


def test_the_page_of_rules_is_their_records():
    """Where this fails: python docs/build_rules.py."""
    assert (ROOT / "docs/lint_rules.md").read_text() == rules_page(RULES)


@pytest.mark.parametrize("block", re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_shown_output_is_real(block, tmp_path):
    """Each console block of docs/lint.md, run on the page's own script."""
    script = re.search(r'"train.py"\).write_text\("""\\\n(.*?)"""\)', PAGE, re.DOTALL)[1]
    (tmp_path / "train.py").write_text(script)
    command, _, shown = block.partition("\n")
    words = command.removeprefix("$ rankwise ").split()
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.rstrip() == shown.rstrip()


def test_the_readme_counts_the_rules():
    """The number of rules in the README is the number of rules, without the linter's own."""
    assert f"{sum(rule.code[2] != '9' for rule in RULES)} rules" in (ROOT / "README.md").read_text()
