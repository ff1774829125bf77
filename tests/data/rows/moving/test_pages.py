"""annbatch's documentation, executed as published but for the import; what else differs is in `pages/stand_ins.py`.

Its text is not part of this repository: it is taken from annbatch's source distribution, which is fetched once.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).with_name("pages")


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


blocks, sdist, stand_ins = load("blocks"), load("sdist"), load("stand_ins")


@pytest.fixture(scope="module")
def archive(pytestconfig, tmp_path_factory):
    """The source distribution; a copy is kept in pytest's cache, if it has one."""
    kept = getattr(pytestconfig, "cache", None)
    try:
        return sdist.fetch(kept.mkdir("annbatch") if kept else tmp_path_factory.mktemp("annbatch"))
    except ConnectionError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"annbatch {sdist.VERSION} cannot be fetched: {error}")


@pytest.fixture(scope="module")
def written(archive):
    """All blocks, by page."""
    found = {}
    for block in blocks.read_blocks(archive):
        found.setdefault(block.page, []).append(block)
    return found


@pytest.fixture(scope="module")
def reports(archive, tmp_path_factory):
    """What running each page told, by page."""
    folder = tmp_path_factory.mktemp("pages")
    done = subprocess.run(
        [sys.executable, FOLDER / "run_pages.py", archive, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(path.read_text()) for path in folder.glob("*/report.json")]
    return {report["page"]: report for report in told}


def test_every_block_is_executed_or_listed(written):
    """Nothing is passed over: not a page, not a kind of block; and the list names nothing that is not there."""
    left_out = {
        page: {block.number for block in its if block.kind not in stand_ins.RUN or block.number in listed(page)}
        - {block.number for block in its if stand_ins.DIRECTIVES.fullmatch(block.kind)}
        for page, its in written.items()
    }
    assert {page: numbers for page, numbers in left_out.items() if numbers} == {
        page: set(listed(page)) for page in stand_ins.NOT_RUN
    }
    executed = {page for page, its in written.items() if any(is_run(block) for block in its)}
    assert executed == set(stand_ins.PAGES)


def listed(page):
    return stand_ins.NOT_RUN.get(page, {})


def is_run(block):
    return block.kind in stand_ins.RUN and block.number not in listed(block.page)


@pytest.mark.parametrize("page", stand_ins.PAGES)
def test_a_page_runs(written, reports, page):
    """Each block, one after the other; then the rows that they made are looked at (`pages/checks.py`)."""
    report = reports[page]
    assert report["error"] is None, report["error"] + report["log"]
    assert [int(number) for number in report["blocks"]] == [block.number for block in written[page] if is_run(block)]


@pytest.mark.parametrize("page", stand_ins.PAGES)
def test_a_page_prints_what_it_printed_there(written, reports, page):
    """Numbers of batches, rows, shapes and dtypes, as they are stored in annbatch's notebooks."""
    printed = {number: settled(page, of_ranks(page, number, text)) for number, text in reports[page]["blocks"].items()}
    stored = {str(block.number): stored_here(block, reports[page]) for block in written[page] if is_run(block)}
    assert printed == stored, reports[page]["log"]


def of_ranks(page, number, text):
    """What each rank printed, in the order of ranks."""
    cell, its_number, pattern = stand_ins.OF_RANKS
    if (page, number) != (cell, str(its_number)):
        return text
    return "".join(f"{line}\n" for line in sorted(re.findall(pattern, text)))


def stored_here(block, report):
    """What a block is stored to have printed, with the differences that are listed."""
    text = block.output or ""
    for theirs, ours, _ in stand_ins.SAID_HERE.get(block.page, ()):
        text = text.replace(theirs, ours)
    if report["gpu_played"]:
        text = re.sub(r"on cuda:\d", "on cpu", text)
    return settled(block.page, text)


def settled(page, text):
    """Without what depends on chance."""
    for pattern, _ in stand_ins.NOT_DETERMINED.get(page, ()):
        text = re.sub(pattern, "~", text)
    return text


@pytest.mark.parametrize("page", stand_ins.PAGES)
def test_a_page_warns_of_what_is_listed(reports, page):
    """Nothing else: an example that warns is one that users have to think about."""
    listed = stand_ins.WARNED.get(page, ())
    warned = reports[page]["warnings"]
    assert len(warned) == len(listed)
    assert all(said in one for one, (said, _) in zip(warned, listed, strict=True))


def test_what_is_changed_has_to_be(written):
    """Each changed text is in one block of its page; `to` has to be passed to annbatch of this version, too."""
    for page, (theirs, _, _) in stand_ins.CHANGED.items():
        assert [block.text.count(theirs) for block in written[page] if theirs in block.text] != []
    described = json.loads(FOLDER.with_name("annbatch_0_3_1.json").read_text())
    assert ["to", "KEYWORD_ONLY", "None"] in described["Loader"]["()"]


def test_no_difference_is_listed_in_vain(written):
    """Each text that is said otherwise here, or depends on chance, is stored in a notebook."""
    for page in {*stand_ins.SAID_HERE, *stand_ins.NOT_DETERMINED}:
        stored = "".join(block.output or "" for block in written[page])
        wanted = [re.escape(theirs) for theirs, _, _ in stand_ins.SAID_HERE.get(page, ())]
        wanted += [pattern for pattern, _ in stand_ins.NOT_DETERMINED.get(page, ())]
        assert [pattern for pattern in wanted if not re.search(pattern, stored)] == []
