"""Bytes that run code when they are read: each place that reads them is known, with who could have written them."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "rankwise"
# what unpickles or runs text, by the last two parts of the called name
RUNS_CODE = {
    "pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "cloudpickle.load", "marshal.loads",
    "marshal.load", "dill.loads", "joblib.load", "shelve.open", "yaml.load", "builtins.eval", "builtins.exec",
}  # fmt: skip
# file -> who wrote what it reads; a new place is a decision, to be taken here and in docs/security.md
TRUSTED = {
    "launch/functions/callee.py": "the caller of rankwise.run, in a folder that only this user can enter",
    "launch/child.py": "the user: it runs the script that was named",
    "launch/functions/caller.py": "the ranks of this call, by the supervisor's own socket or (Slurm) the job's folder",
    "launch/slurm/start.py": "the submitting process, in the job's folder, which only this user can enter",
    "world/collectives/objects.py": "the ranks of the job, over its process group or the store of a coordinator",
}
SKIPPED = ("testing/",)


def called(node):
    """The last two parts of what a call names: `a.pickle.loads(x)` is "pickle.loads", `eval(x)` "builtins.eval"."""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name | ast.Attribute):
        owner = node.func.value
        return f"{owner.id if isinstance(owner, ast.Name) else owner.attr}.{node.func.attr}"
    return f"builtins.{node.func.id}" if isinstance(node.func, ast.Name) else ""


def keyword(node, name):
    """The constant that a call gives for a keyword; None if it gives none."""
    return next((k.value.value for k in node.keywords if k.arg == name and isinstance(k.value, ast.Constant)), None)


def readers(text):
    """The calls of a module that run code of what they read, and loads that may, for want of an argument."""
    found = []
    if not any(word in text for word in ("load", "Unpickler", "shelve", "eval", "exec")):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in {"pickle", "cloudpickle", "marshal", "dill"}:
            found += [
                f"{node.module}.{alias.name}" for alias in node.names if "oad" in alias.name or "Unp" in alias.name
            ]
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        unsafe_torch = name == "torch.load" and keyword(node, "weights_only") is not True
        unsafe_numpy = name == "np.load" and keyword(node, "allow_pickle") not in {None, False}  # its default is False
        if name in RUNS_CODE or unsafe_torch or unsafe_numpy:
            found.append(name)
    return found


def test_every_place_that_unpickles_is_known():
    """Checkpoints, indices, messages of supervisors and of the meeting are never unpickled; what is, is listed."""
    places = {}
    for path in sorted(SRC.rglob("*.py")):
        name = path.relative_to(SRC).as_posix()
        if not name.startswith(SKIPPED) and (found := readers(path.read_text())):
            places[name] = found
    assert set(places) == set(TRUSTED), places


def test_the_page_names_them_all():
    """docs/security.md tells the same list."""
    page = (SRC.parents[1] / "docs" / "security.md").read_text()
    assert [name for name in TRUSTED if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads",
        "import torch\ntorch.load('f')",
        "import torch\ntorch.load('f', weights_only=False)",
        "import numpy as np\nnp.load('f', allow_pickle=True)",
        "eval('1')",
    ],
)
def test_a_planted_place_is_found(text):
    """The test itself can fail."""
    assert readers(text)


def test_safe_loads_are_no_places():
    """Weights only, arrays without objects."""
    assert readers("torch.load(f, weights_only=True)\nnp.load(f, allow_pickle=False)\njson.loads('1')") == []
