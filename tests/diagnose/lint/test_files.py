"""Files of every kind are read, comments and settings obeyed, and other files go on where one cannot be read."""

import gc
import json
import os
import platform
from pathlib import Path

import pytest

from rankwise.diagnose.lint import RULES, Settings, checker, find_settings, lint_paths, to_text
from rankwise.diagnose.lint.analysis.scopes import Scope
from rankwise.diagnose.lint.fixes import add_comments
from rankwise.diagnose.lint.suppression import read_baseline, without_known, write_baseline
from rankwise.errors import ConfigError

BAD = "import torch\nnet = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"


def codes(report):
    return [found.rule.code for found in report.findings]


def test_files_that_do_not_parse(tmp_path):
    """Each is named with its line, the others are checked, and the exit code says that not all were."""
    (tmp_path / "a.py").write_text("def f(:\n")
    (tmp_path / "b.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "c.py").write_text("x = '\0'\n")
    (tmp_path / "d.py").write_text(BAD)
    (tmp_path / "e.py").write_bytes("# coding: latin-1\ns = 'é'\n".encode("latin-1") + BAD.encode())
    (tmp_path / "f.ipynb").write_text("{}")
    (tmp_path / "g.ipynb").write_text("[")
    (tmp_path / "h.py").write_text("# coding: rot13\nk = 1\n")
    report = lint_paths([tmp_path])
    failed = {failure.file.rpartition("/")[2]: failure for failure in report.failures}
    assert set(failed) == {"a.py", "b.py", "c.py", "g.ipynb", "h.py"}
    assert failed["a.py"].line == 1
    running = ".".join(platform.python_version_tuple()[:2])
    assert f"does not parse with Python {running}: invalid syntax; " in failed["a.py"].message
    assert failed["a.py"].message.endswith("run lint with that Python")
    assert "what is not utf-8 names its encoding" in failed["b.py"].message
    assert [found.file.rpartition("/")[2] for found in report.findings] == ["d.py", "e.py"]
    assert report.exitcode == 2


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="there is no /dev/fd")
def test_pipes():
    """`rankwise lint <(python make_script.py)`: what a pipe gives is checked like a file."""
    read, write = os.pipe()
    with os.fdopen(read, "rb"), os.fdopen(write, "w") as script:
        script.write(BAD)
        script.close()
        assert [found.rule.slug for found in lint_paths([Path(f"/dev/fd/{read}")]).findings] == ["dataparallel-module"]


def test_folders(tmp_path):
    """Environments, hidden folders and what is excluded are left out; a file that is named is read in any case."""
    for place in ("src", ".git", "venv", "third_party", "own"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "m.py").write_text(BAD)
    (tmp_path / "own" / "pyvenv.cfg").touch()
    report = lint_paths([tmp_path], Settings(exclude=("third_party",)))
    assert [found.file for found in report.findings] == [str(tmp_path / "src" / "m.py")]
    assert codes(lint_paths([tmp_path / ".git" / "m.py", tmp_path / ".git" / "m.py"])) == ["RW210"]
    with pytest.raises(ConfigError, match="no file or folder"):
        lint_paths([tmp_path / "nothing"])


def test_notebooks(tmp_path):
    """Cells are one program; magics and shell lines are no errors; places are those inside a cell."""
    cells = [
        {"cell_type": "markdown", "source": ["# text\n"]},
        {
            "cell_type": "code",
            "source": ["%matplotlib inline\n", "import torch\n", "!pip list\n", "if torch:\n", "    !ls\n"],
        },
        {"cell_type": "code", "source": "files = !ls \\\n  -l\n!torchrun --nproc 2 \\\n    train.py\n"},
        {"cell_type": "code", "source": ["x = (7\n", "% 3)\n", "net = torch.nn.DataParallel(x)\n", "x?"]},
    ]
    cells.append({"cell_type": "code", "source": "%%bash\necho 1 2"})
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    report = lint_paths([tmp_path])
    assert report.failures == []
    [found] = report.findings
    assert (found.cell, found.line, found.column, found.fix) == (4, 3, 7, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "it is no JSON"),
        ("", "it is no JSON"),
        ("null", "its JSON holds no cells"),
        ('{"cells": ["a"]}', "its JSON holds no cells"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path, content, said):
    """Whatever an .ipynb holds, it costs that file only."""
    (tmp_path / "n.ipynb").write_text(content)
    (tmp_path / "own.py").write_text(BAD)
    report = lint_paths([tmp_path])
    assert codes(report) == ["RW210"]
    [failure] = report.failures
    assert "no notebook" in failure.message
    assert said in failure.message
    assert report.exitcode == 2


@pytest.mark.parametrize("text", ["x = " + "-" * 50_000 + "1", "x = " + "(" * 5000, "x = a" + ".b" * 20_000])
def test_what_is_nested_too_deeply_does_not_parse(tmp_path, text):
    """The limits of Python's parser are no bugs of the linter."""
    (tmp_path / "own.py").write_text(text)
    [failure] = lint_paths([tmp_path]).failures
    assert "does not parse" in failure.message


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# rankwise: ignore[RW210] one process", []),
        ("# rankwise: ignore[dataparallel-module]", []),
        ("# rankwise: ignore", []),
        ("# noqa: RW210", []),
        ("# noqa: E501, RW210", []),
        ("# rankwise: ignore[RW101]", ["RW210", "RW901"]),
        ("# rankwise: ignore[RW210, RW101]", ["RW901"]),
        ("# noqa: E501", ["RW210"]),
    ],
)
def test_comments(tmp_path, comment, left):
    """A comment suppresses what it names on its line; one that suppresses nothing is reported."""
    (tmp_path / "m.py").write_text(BAD.rstrip() + f"  {comment}\n")
    report = lint_paths([tmp_path])
    assert sorted(codes(report)) == left
    assert bool(report.noqa_files) is ("noqa" in comment and "RW" in comment)


def test_a_comment_for_the_file_and_text_that_is_no_comment(tmp_path):
    """`ignore-file` counts everywhere; the same words in a string count nowhere."""
    (tmp_path / "m.py").write_text("# rankwise: ignore-file[RW2]\n" + BAD)
    (tmp_path / "n.py").write_text("'# rankwise: ignore-file[RW2]'\n" + BAD)
    assert [found.file[-4:] for found in lint_paths([tmp_path]).findings] == ["n.py"]


def test_settings(tmp_path):
    """The nearest table counts; options count more; a key or a name that nobody knows is an error."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.rankwise.lint]\nignore = ["RW210"]\n[tool.rankwise.lint.per-file-ignores]\n"gen_*.py" = ["RW2"]\n'
    )
    found = find_settings(inner, select=("RW2",))
    assert (found.select, found.ignore) == (("RW2",), ("RW210",))
    assert found.per_file_ignores == {"gen_*.py": ("RW2",)}
    assert not found.rules_for("x/gen_a.py", RULES)
    (inner / "pyproject.toml").write_text('[tool.rankwise.lint]\nselct = ["RW2"]\n')
    with pytest.raises(ConfigError, match=r"has no key 'selct'; it knows .*select"):
        find_settings(inner)
    (inner / "pyproject.toml").write_text('[tool.rankwise.lint]\nselect = "RW2"\n')
    with pytest.raises(ConfigError, match="wants a list of strings"):
        find_settings(inner)
    with pytest.raises(ConfigError, match="no rule is called 'RW299'"):
        Settings(select=("RW299",)).check_names(RULES)


def test_info_and_low_confidence_are_off_unless_selected(tmp_path):
    """By default neither; a prefix brings info, a full code low confidence, too."""
    source = "import torch\nnet = torch.nn.parallel.DistributedDataParallel(1, find_unused_parameters=True)\n"
    (tmp_path / "m.py").write_text("import x\nx.setup()\n" + source)
    assert codes(lint_paths([tmp_path])) == []
    assert codes(lint_paths([tmp_path], Settings(select=("RW209",)))) == ["RW209"]
    assert codes(lint_paths([tmp_path], Settings(confidence="low"))) == ["RW209"]


def test_a_baseline_holds_old_findings_while_lines_move(tmp_path):
    """Known ones are not reported, also further down; a second equal one is new."""
    path, kept = tmp_path / "m.py", tmp_path / "baseline.json"
    path.write_text(BAD)
    assert write_baseline(kept, lint_paths([path]).findings) == 1
    path.write_text("\n\n" + BAD)
    assert without_known(lint_paths([path]).findings, read_baseline(kept)) == []
    path.write_text(BAD + BAD)
    assert len(without_known(lint_paths([path]).findings, read_baseline(kept))) == 1
    with pytest.raises(ConfigError, match="no baseline"):
        read_baseline(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="is no baseline, as"):
        read_baseline(tmp_path)
    for damaged in (b"\xff\xd8", b'{"version": 1, "findings": [{"fi', b'{"version": 1, "findings": 3}', b"[]"):
        kept.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"baseline.json is no baseline, as `--write-baseline` makes it"):
            read_baseline(kept)
    kept.write_text('{"version": 2, "findings": [3]}')
    with pytest.raises(ConfigError, match=r"version 2, wanted 1: write it anew"):
        read_baseline(kept)


def test_calls_are_followed_into_files_that_are_given(tmp_path):
    """A function of another file that reaches a collective, called on one rank: found only where that file is given."""
    (tmp_path / "tools.py").write_text("import torch.distributed as dist\ndef total(x):\n    dist.all_reduce(x)\n")
    main = tmp_path / "train.py"
    main.write_text("from tools import total\ndef f(x, rank):\n    if rank == 0:\n        total(x)\n")
    assert codes(lint_paths([main])) == []
    assert codes(lint_paths([tmp_path])) == ["RW401"]


def test_comments_are_added_only_where_they_can_stand(tmp_path):
    """After a form feed the lines still count right; before a continuation there is no place for one."""
    path = tmp_path / "m.py"
    path.write_text(
        "import torch\n\x0c\nnet = torch.nn.DataParallel(1)\nother = torch.nn.DataParallel(2) \\\n    or 1\n"
    )
    assert add_comments(lint_paths([path])) == (1, [])
    lines = path.read_text().split("\n")
    assert lines[2] == "net = torch.nn.DataParallel(1)  # rankwise: ignore[RW210]"
    assert lines[3] == "other = torch.nn.DataParallel(2) \\"
    assert [found.line for found in lint_paths([path]).findings] == [4]


def test_lines_may_end_in_a_carriage_return_alone(tmp_path):
    """Places, frames and comments that suppress nothing are those of the lines that Python counts."""
    path = tmp_path / "m.py"
    path.write_bytes(b"import torch\rx = 1  # rankwise: ignore[RW101]\r")
    report = lint_paths([path])
    assert [(found.line, found.column, found.source_line[:5]) for found in report.findings] == [(2, 8, "x = 1")]
    assert "2 | x = 1" in to_text(report, "full")


def test_a_rule_that_fails_costs_one_file(tmp_path, monkeypatch):
    """A bug of ours is said with its place, the exit code is 2, and the other files are checked."""

    def broken(source, *_):
        if source.path.endswith("a.py"):
            raise KeyError("x")
        return []

    monkeypatch.setattr("rankwise.diagnose.lint.checker.check_source", broken)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(BAD)
    report = lint_paths([tmp_path])
    [failure] = report.failures
    assert "a bug of it: KeyError: 'x' (test_files.py:" in failure.message
    assert (report.num_files, report.exitcode) == (2, 2)


def test_a_file_that_is_checked_needs_no_collector_to_be_freed(tmp_path, monkeypatch):
    """The collector is paused, because it would walk all trees again and again: memory must not grow with the files."""
    text = "class Freed:\n    def save(self):\n        if rank == 0:\n            torch.save(self, 'm.pt')\n"
    (tmp_path / "a.py").write_text(f"import torch\nimport torch.distributed as dist\nrank = dist.get_rank()\n{text}")
    paused = []
    monkeypatch.setattr(checker, "uses_noqa", lambda _: paused.append(not gc.isenabled()))
    lint_paths([tmp_path], Settings(select=("ALL",)))
    assert paused == [True]
    assert gc.isenabled()
    gc.disable()
    try:
        lint_paths([tmp_path], Settings(select=("ALL",)))
        assert not gc.isenabled()
        assert "Freed" not in [each.name for each in gc.get_objects() if type(each) is Scope]
    finally:
        gc.enable()
