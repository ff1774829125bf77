"""The comparison of row readers on tiny stores: it runs, all give the same rows, and it says what it saw."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "rows.py"


def test_it_runs(tmp_path):
    """Each reader gives CPU and wall time in every round; what annbatch would need is said; no goal is judged here."""
    found = tmp_path / "found.json"
    words = ("--quick", "--folder", str(tmp_path / "sets"), "--threads", "1", "--runs", "32", "512")
    done = run(SCRIPT, *words, "--layouts", "annbatch", "--json", str(found))
    assert done.returncode == 0, done.stderr
    assert "annbatch is left out: --annbatch names no interpreter that has it" in done.stdout
    facts = json.loads(found.read_text())
    few, loaders = {"floor", "ours", "memory"}, {"loader", "ordered", "memory-loader"}
    many = few | {"ours-unaided", "ours-dense", "memory-dense", "ours-genes", "memory-genes"}
    with_genes = loaders | {"ordered-genes"}
    wanted = {"requests": [(32, few), (512, many)], "loaders": [(32, loaders), (64, with_genes), (512, loaders)]}
    for part, cases in wanted.items():
        for case, (length, names) in zip(facts[part], cases, strict=True):
            assert case["run"] == length
            assert {name: len(spent) for name, spent in case["cpu_s"].items()} == dict.fromkeys(names, 2)
            assert set(case["wall_s"]) == names
    (overlap,) = facts["overlap"]
    for name in ("loader", "ordered"):
        assert len(overlap["early_waits_s"][name]) == 2
        for what in ("load_s", "steps_s", "first_s", "later_s", "early_s", "waits_s"):
            assert len(overlap[what][name]) == 2
            assert min(overlap[what][name]) > 0
    assert "begun early = start_prefetch() 0.5 s before" in done.stdout
    assert {verdict["met"] for verdict in facts["verdicts"]} == {None}
    said = " ".join(verdict["goal"] for verdict in facts["verdicts"])
    for goal in ("share of the floor", "all sparse", "without zarrs", "with steps as long as a batch"):
        assert goal in said


@pytest.mark.slow
def test_dense_stores_and_row_edges(tmp_path):
    """Rows of a dense store and of our layout are compared too; an interpreter without annbatch is named."""
    words = ("--quick", "--folder", str(tmp_path), "--threads", "1", "--runs", "1", "--parts", "requests")
    done = run(SCRIPT, *words, "--layouts", "dense", "aligned", "--annbatch", str(tmp_path / "no-python"))
    assert done.returncode == 0, done.stderr
    assert f"annbatch is left out: {tmp_path / 'no-python'} cannot be run" in done.stdout
    assert done.stdout.count("| rankwise |") == 2


def test_what_meets_a_goal():
    """Verdicts follow the medians: met, missed, and open where a run says nothing about the goal."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from types import SimpleNamespace\n"
        "from _rows import goals\n"
        "from _rows.overlap import Overlap\n"
        "from _rows.comparison import Comparison\n"
        "task = SimpleNamespace(run=512)\n"
        "found = Comparison(title='x', layout='annbatch', task=task, count=1, num_rows=10)\n"
        "found.cpu_s = {'ours': [2.0, 2.0], 'annbatch': [4.0, 4.0], 'floor': [1.0, 1.0], 'ours-unaided': [2.1, 2.1]}\n"
        "found.cpu_s |= {'ours-dense': [1.0, 1.0], 'annbatch-dense': [9.0, 9.0], 'ours-genes': [3.0, 3.0]}\n"
        "print([each.met for each in goals.of_comparison(found, torch=False, full=True)])\n"
        "print({each.met for each in goals.of_comparison(found, torch=True, full=False)})\n"
        "found.cpu_s |= {'ordered': [3.0, 3.0], 'ordered-genes': [2.0, 2.0]}\n"
        "print([each.met for each in goals.of_loaders(found, full=True)])\n"
        "found.imported_zarrs = {'ours'}\n"
        "print(goals.of_comparison(found, torch=True, full=True)[-1].met)\n"
        "overlap = Overlap(title='x')\n"  # four epochs of two batches: first and last do not count
        "alone = {'ends_s': [1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 9.0, 9.9]}\n"
        "overlap.add('loader', alone, {'ends_s': [2.0, 4.0, 5.0, 6.0, 7.0, 8.2, 9.0, 9.9], 'steps_s': 8.0})\n"
        "overlap.add_early('loader', {'ends_s': [1.0, 2.5, 3.0, 4.0], 'steps_s': 4.0})\n"
        "print([each.met for each in goals.of_overlap(overlap, full=True)])\n"
        "print(*[round(overlap.stretch('loader', of).median, 2) for of in (overlap.first_s, None, overlap.early_s)])\n"
        "print(overlap.waits_s['loader'], overlap.early_waits_s['loader'])\n"
        "overlap.later_s['loader'] = [2.3]\n"
        "print(goals.of_overlap(overlap, full=True)[0].met)\n"
    )
    done = run("-c", code, SCRIPT.parent)
    assert done.returncode == 0, done.stderr
    # annbatch 2.0 of 1.15, floor 0.5 of 0.55, dense rows without torch, genes 0.67 of 1, without zarrs 1.05
    assert done.stdout.splitlines() == [
        "[True, False, None, False, True]",
        "{None}",
        "[True]",
        "False",
        "[True, False]",
        "2.0 1.05 1.25",
        "[1.0] [0.0]",
        "False",
    ]


def test_other_rows_are_not_timed():
    """A reader that returns something else ends the run, before anything is timed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from _rows import comparison\n"
        "class Fake:\n"
        "    def __init__(self, digest): self.digest = digest\n"
        "    def round(self, *_, **__): return {'digest': [self.digest]}\n"
        "found = comparison.Comparison(title='x', layout='dense', task=None, count=1, num_rows=1)\n"
        "comparison.check_equal(found, ['ours', 'memory'], {'ours': Fake(1), 'memory': Fake(1)})\n"
        "print('equal')\n"
        "comparison.check_equal(found, ['ours', 'memory'], {'ours': Fake(1), 'memory': Fake(2)})\n"
    )
    done = run("-c", code, SCRIPT.parent)
    assert done.stdout.strip() == "equal"
    assert done.returncode == 1
    assert "do not return the same rows" in done.stderr


def test_checksums_see_each_row():
    """Checksums differ by the place of a row, by a column and by a value, and not by the dtype of the places."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, scipy.sparse as sp\n"
        "from _rows.process import checksum\n"
        "rows = sp.csr_matrix(np.array([[0, 1, 2], [3, 0, 0]], dtype='f4'))\n"
        "wide = sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=rows.shape)\n"
        "wide.indices, wide.indptr = rows.indices.astype('i8'), rows.indptr.astype('i8')\n"
        "moved, other = rows[[1, 0]], rows.copy()\n"
        "other.data[0] = 7\n"
        "column = sp.csr_matrix(np.array([[1, 0, 2], [3, 0, 0]], dtype='f4'))\n"
        "assert checksum(rows) == checksum(wide)\n"
        "assert len({checksum(each) for each in (rows, moved, other, column)}) == 4\n"
    )
    done = run("-c", code, SCRIPT.parent)
    assert done.returncode == 0, done.stderr


def test_epochs_are_compared_in_any_order():
    """The digest of an epoch is the same for any order and cut of its rows, and another for other rows."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, scipy.sparse as sp\n"
        "from _rows.process import whole_digest\n"
        "class Reader:\n"
        "    def __init__(self, *batches): self.held = batches\n"
        "    def batches(self, _): return iter(self.held)\n"
        "rows = np.array([[0, 1, 2], [3, 0, 0], [4, 5, 0]], dtype='f4')\n"
        "for made in (sp.csr_matrix, np.asarray):\n"
        "    whole = whole_digest(Reader(made(rows)), range(1))\n"
        "    assert whole == whole_digest(Reader(made(rows[[2, 0]]), made(rows[[1]])), range(1))\n"
        "    assert whole != whole_digest(Reader(made(rows[[0, 1, 1]])), range(1))\n"
        "    assert whole != whole_digest(Reader(made(rows[:, [1, 0, 2]])), range(1))\n"
        "    assert whole[0] == 3\n"
    )
    done = run("-c", code, SCRIPT.parent)
    assert done.returncode == 0, done.stderr


def run(*words):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
