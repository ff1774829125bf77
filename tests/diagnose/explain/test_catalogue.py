"""The catalogue: every message is cited, explained, and told apart from all others."""

import re
from pathlib import Path

import pytest

from rankwise.diagnose.explain import MESSAGES, catalogue_table
from rankwise.diagnose.explain.logs import _without_prefix, candidates, matching
from rankwise.diagnose.lint import RULES

ROOT = Path(__file__).parents[3]


def slugs_in(line):
    text, _ = _without_prefix(line)
    among = [message for found in candidates(text.encode()).values() for message in found]
    return {message.slug for message in matching(text, among)}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.slug)
def test_a_sample_is_its_own_messages(message):
    """Each sample is found through its literals, with and without prefixes and codes, and no other message takes it."""
    assert slugs_in(message.sample) == {message.slug}
    assert slugs_in(f"[rank3]: {message.sample}") == {message.slug}
    assert slugs_in(f"3: {message.sample}") == {message.slug}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.slug)
def test_a_record_is_complete(message):
    """It is cited by a public thread, has causes and mends, and names only rules that exist."""
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", message.source)
    for texts in (message.causes, message.mends):
        assert isinstance(texts, tuple)
        assert texts
        assert all(len(text) > 5 for text in texts)
    assert len(message.meaning) > 30
    assert message.literals or not re.search(r"(?<!\\)[.^$*+?{}\[\]()]|\\\w", message.pattern)
    named = {slug for text in message.mends for slug in re.findall(r"rankwise rule ([\w-]+)", text)}
    assert named <= {rule.slug for rule in RULES}


@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("OSError: [Errno 98] Address already in use", "address-in-use"),
        ("[W] failed to bind to [::]:29500 (errno: 98 - Address already in use).", "address-in-use"),
        ("[rank1]: ProcessGroupNCCL: failure detected by watchdog", "watchdog-work"),
        ("find_unused_parameters=True was specified in DDP constructor, but did not find any", "needless-unused"),
    ],
)
def test_every_form_of_a_message_is_found(line, slug):
    """Not only that of the sample."""
    assert slugs_in(line) == {slug}


def test_the_catalogue_is_large_and_without_doubles():
    """At least sixty messages; names, samples and threads are not used twice."""
    assert len(MESSAGES) >= 60
    for values in zip(*((m.slug, m.sample, m.source) for m in MESSAGES), strict=True):
        assert sorted(set(values)) == sorted(values)


def test_the_page_holds_the_table():
    """Where this fails: put `catalogue_table()` between the marks of docs/explain.md."""
    page = (ROOT / "docs/explain.md").read_text()
    assert page.partition("<!-- table -->\n")[2].partition("<!-- end -->")[0] == catalogue_table()
    assert f"{len(MESSAGES)} messages" in page
