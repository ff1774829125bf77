"""The comparison of row readers on tiny stores: it runs, all give the same rows, and it says what it saw."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "bench" / "rows.py"


def test_it_runs(tmp_path):
    """Each reader gives CPU and wall time in every round; what annbatch would need is said; no goal is judged here."""
    found = tmp_path / "found.json"
    words = ("--quick", "--folder", str(tmp_path / "sets"), "--threads", "1", "--runs", "1", "512")
    done = run(SCRIPT, *words, "--layouts", "annbatch", "aligned", "--json", str(found))
    assert done.returncode == 0, done.stderr
    assert "annbatch is left out: --annbatch names no interpreter that has it" in done.stdout
    facts = json.loads(found.read_text())
    assert [(case["layout"], case["run"]) for case in facts["compare"]] == [
        ("annbatch", 1), ("annbatch", 512), ("aligned", 1), ("aligned", 512),
    ]  # fmt: skip
    few = {"floor", "ours", "memory"}
    dense = {"ours-dense", "memory-dense", "ours-genes", "memory-genes"}
    for case, names in zip(facts["compare"], (few, few | dense, few, few), strict=True):
        assert {name: len(spent) for name, spent in case["cpu_s"].items()} == dict.fromkeys(names, 2)
        assert set(case["wall_s"]) == names
    assert {verdict["met"] for verdict in facts["verdicts"]} == {None}
    assert any("share of the floor" in verdict["goal"] for verdict in facts["verdicts"])


def test_dense_stores(tmp_path):
    """Rows of a dense store are compared too; an interpreter without annbatch is named."""
    words = ("--quick", "--folder", str(tmp_path), "--threads", "1", "--runs", "32", "--layouts", "dense")
    done = run(SCRIPT, *words, "--annbatch", str(tmp_path / "no-python"))
    assert done.returncode == 0, done.stderr
    assert f"annbatch is left out: {tmp_path / 'no-python'} cannot be run" in done.stdout
    assert "| rankwise |" in done.stdout


def test_other_rows_are_not_timed():
    """A reader that returns something else ends the run, before anything is timed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from _rows import comparing\n"
        "class Fake:\n"
        "    def __init__(self, digest): self.digest = digest\n"
        "    def round(self, *_, **__): return {'digest': [self.digest]}\n"
        "found = comparing.Comparison(title='x', layout='dense', task=None, requests=1)\n"
        "comparing.check_equal(found, ['ours', 'memory'], {'ours': Fake(1), 'memory': Fake(1)})\n"
        "print('equal')\n"
        "comparing.check_equal(found, ['ours', 'memory'], {'ours': Fake(1), 'memory': Fake(2)})\n"
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


def run(*words):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
