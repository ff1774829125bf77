"""What the tests of forms share: cases that mark their mistakes."""

import re

import pytest

from rankwise.diagnose.lint import check_source
from rankwise.diagnose.lint.inputs import source_from_text


@pytest.fixture(scope="session")
def judged():
    """Return what is found in a case, and what it marks by ``#> slug`` at the end of a line: pairs of line and slug."""

    def judge(text, name="train.py"):
        marks = [(number, re.search(r"#> (\S+)", line)) for number, line in enumerate(text.splitlines(), 1)]
        findings = check_source(source_from_text(re.sub(r"  #>[^\n]*", "", text), name))
        found = sorted((each.line, each.rule.slug) for each in findings)
        return found, [(number, mark[1]) for number, mark in marks if mark]

    return judge
