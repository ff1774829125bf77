"""The house stands: imports go down the levels only, siblings do not import each other."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# The table of the design. A room may import rooms of a lower level, and itself.
LEVELS = {
    "_version": 0,
    "_lazy": 0,
    "_files": 0,
    "_shutdown": 0,
    "errors": 0,
    "_process": 1,
    "world": 2,
    "vitals": 2,
    "data.contract": 2,
    "launch": 3,
    "data.order": 3,
    "data.store": 3,
    "data.feed": 3,
    "guard": 3,
    "metrics": 3,
    "checkpoint": 3,
    "tracking": 3,
    "data.samples": 4,
    "data.crops": 4,
    "data.rows": 4,
    "train": 5,
    "diagnose": 6,
    "cli": 7,
}
# Tables of contents, which name every room: the package's front door, its data door, and `python -m rankwise`.
# `_torch_hook` is called by torch's import and begins a watch.
DOORS = {"rankwise", "rankwise.data", "rankwise.__main__", "rankwise._torch_hook"}
# The testing room may import everything, and nothing imports it.
TESTING = "testing"


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a dotted module name, None for a door and for what is not ours."""
    if module in DOORS or module.split(".", maxsplit=1)[0] != "rankwise":
        return None
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "data" else parts[0]


@cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Those of a file, wherever they stand; many tests ask for those of the same files."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_modules(path: Path, module: str) -> list[tuple[int, str]]:
    """Every module, or name in one, that the file imports, wherever the import stands."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for node in import_statements(path.read_text()):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                stem = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*stem, base] if base else stem)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def violations(path: Path, module: str) -> list[str]:
    here = room_of(module)
    if here is None or here == TESTING:
        return []
    problems = []
    for line, target in imported_modules(path, module):
        there = room_of(target)
        if target in DOORS:
            problems.append(f"{path}:{line} imports the door {target}; import the room itself")
        if there is None or there == here:
            continue
        if there == TESTING:
            problems.append(f"{path}:{line} imports rankwise.testing, which only tests may use")
        elif there in LEVELS and LEVELS[there] >= LEVELS[here]:
            problems.append(f"{path}:{line} {here} (level {LEVELS[here]}) imports {there} (level {LEVELS[there]})")
    return problems


FILES = sorted(SRC.rglob("*.py"))
# Rooms of `diagnose` that stand beside each other; `lint` is also what an environment without torch and numpy can load.
SUB_ROOMS = {"lint", "doctor", "watch", "profile", "report", "explain"}
LINT_MAY_IMPORT = {"rankwise.diagnose.variables", "rankwise.errors", "rankwise._files", "rankwise._version"}
# The folders of `train`, lowest first: each imports those below it only, and the files beside the folders import all.
TRAIN_FOLDERS = ("models", "loaders", "step", "loop")

# Optional parts of the data rooms: who does without them never loads them, so the rest of the room imports none of
# them. The room's door names them, and one part may stand on another.
PARTS = {
    "rankwise.data.store": {"ngff": set(), "catalogue": {"ngff"}},
    "rankwise.data.crops": {"audit": set(), "stitching": set()},
    "rankwise.data.rows": {"output": set(), "collection": {"output"}, "inspection": {"collection"}},
}
# The store turns bytes into arrays, and stands alone: what it may import of the rest.
STORE_MAY_IMPORT = {"errors", "_files", "_lazy", "_process", "data.contract", "data.store"}


def crossed(path: Path, module: str) -> list[str]:
    """Imports of an optional part of a data room from outside of it, and what the store may not import."""
    found = []
    for line, target in imported_modules(path, module):
        if room_of(module) == "data.store" and room_of(target) not in STORE_MAY_IMPORT | {None}:
            found.append(f"{path}:{line} the store imports {target}")
        for room, parts in PARTS.items():
            if module == room or not (module.startswith(f"{room}.") and target.startswith(f"{room}.")):
                continue
            here, there = (name.removeprefix(f"{room}.").split(".")[0] for name in (module, target))
            if there in parts and here != there and there not in parts.get(here, ()):
                found.append(f"{path}:{line} {here} imports {target}, of an optional part")
    return found


def strayed(path: Path, module: str) -> list[str]:
    """Imports of a sub-room of `diagnose` that lead into another one, or out of `lint` further than it may."""
    parts = module.split(".")
    if parts[:2] != ["rankwise", "diagnose"] or len(parts) < 3 or parts[2] not in SUB_ROOMS:
        return []
    here = parts[2]
    found = []
    for line, target in imported_modules(path, module):
        words = target.split(".")
        if words[0] != "rankwise":
            continue
        beside = words[:2] == ["rankwise", "diagnose"] and len(words) > 2 and words[2] in SUB_ROOMS - {here}
        inside = words[:3] == ["rankwise", "diagnose", here]
        allowed = inside or here != "lint" or any(f"{target}.".startswith(f"{name}.") for name in LINT_MAY_IMPORT)
        if beside or not allowed:
            found.append(f"{path}:{line} {here} imports {target}")
    return found


def climbed(path: Path, module: str) -> list[str]:
    """Imports of a folder of `train` that lead into one above it, or to a file beside the folders."""
    parts = module.split(".")
    if parts[:2] != ["rankwise", "train"] or len(parts) < 3 or parts[2] not in TRAIN_FOLDERS:
        return []
    below = tuple(f"rankwise.train.{name}." for name in TRAIN_FOLDERS[: TRAIN_FOLDERS.index(parts[2]) + 1])
    targets = [(line, target) for line, target in imported_modules(path, module) if room_of(target) == "train"]
    return [
        f"{path}:{line} {parts[2]} imports {target}"
        for line, target in targets
        if not target.startswith(below) and target.rpartition(".")[0] not in SPREAD_OVER_FILES
    ]


@pytest.mark.parametrize("path", FILES, ids=[module_name(p) for p in FILES])
def test_imports_go_down(path):
    """Every file belongs to a room of the table and imports only what lies below it."""
    module = module_name(path)
    room = room_of(module)
    assert room is None or room == TESTING or room in LEVELS, f"{module}: its room is not in the table"
    assert violations(path, module) == []
    assert strayed(path, module) == []
    assert crossed(path, module) == []
    assert climbed(path, module) == []


def test_a_crossed_edge_is_caught(tmp_path):
    """The test itself can fail: the metadata of arrays know no images, and the store no loader."""
    file = tmp_path / "planted.py"
    file.write_text(
        "def f():\n    from rankwise.data.store.ngff.images import Image\n    from rankwise.world import World\n"
        "from rankwise.data.store.files.handles import local_identity\nfrom rankwise.errors import DataError\n"
    )
    found = crossed(file, "rankwise.data.store.meta.planted")
    assert [problem.split(" imports ")[1].split(",")[0] for problem in found] == [
        "rankwise.data.store.ngff.images.Image",
        "rankwise.world.World",
    ]
    assert len(crossed(file, "rankwise.data.store.catalogue.planted")) == 1
    file.write_text("from rankwise.data.rows.inspection.description import describe_rows\n")
    assert len(crossed(file, "rankwise.data.rows.collection.planted")) == 1


def test_a_stray_import_is_caught(tmp_path):
    """The test itself can fail: the doctor in the linter, world in it; its own files and errors are no strangers."""
    file = tmp_path / "planted.py"
    file.write_text(
        "from rankwise.diagnose.doctor import x\nfrom rankwise.world import World\n"
        "from rankwise.errors import ConfigError\nfrom rankwise.diagnose.lint.record import Rule\nimport ast\n"
    )
    found = strayed(file, "rankwise.diagnose.lint.planted")
    assert [problem.rpartition(" ")[2] for problem in found] == ["rankwise.diagnose.doctor.x", "rankwise.world.World"]


def test_a_climbing_import_is_caught(tmp_path):
    """The test itself can fail: the model knows no step, nor `prepare`; the step knows the model."""
    file = tmp_path / "planted.py"
    file.write_text("from rankwise.train.step.window import Window\nfrom rankwise.train.strategy import prepare\n")
    assert len(climbed(file, "rankwise.train.models.planted")) == 2
    assert len(climbed(file, "rankwise.train.step.planted")) == 1


def test_an_upward_import_is_caught(tmp_path):
    """The test itself can fail: imports inside functions and relative ones are seen."""
    file = tmp_path / "planted.py"
    file.write_text("def f():\n    from rankwise.train import Trainer\n    from ..metrics import Mean\n")
    found = violations(file, "rankwise.world.planted")
    assert len(found) == 2
    assert "train (level 5)" in found[0]


# Classes whose methods lie in files of their own: these name the class in their signatures.
SPREAD_OVER_FILES = {"rankwise.train.trainer", "rankwise.world.value"}


def import_graph(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Which of the modules each imports, or names out of."""
    graph = {}
    for module, path in paths.items():
        named = (target for _, target in imported_modules(path, module))
        targets = (target if target in paths else target.rpartition(".")[0] for target in named)
        graph[module] = {target for target in targets if target in paths}
    return graph


def modules_in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others, or lie between such."""
    left = set(graph)
    while True:
        importing = {module for module in left if graph[module] & left}
        imported = {target for module in left for target in graph[module]}
        if importing & imported & left == left:
            return left
        left &= importing & imported


def test_nothing_imports_itself_by_way_of_others():
    """Inside a room imports have one direction too; the classes that are spread over files are a closed list."""
    graph = import_graph({module_name(path): path for path in FILES})
    without = {module: targets - SPREAD_OVER_FILES for module, targets in graph.items()}
    assert modules_in_circles(without) == set()
    assert modules_in_circles(graph) >= SPREAD_OVER_FILES, "one is no longer in a circle: take it off the list"


def test_a_circle_is_found():
    """The test itself can fail: a long way round is a circle, and not what leads into it or out of it."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert modules_in_circles(graph) == {"a", "b", "c"}


def test_no_name_shares_a_module_name():
    """`rankwise.launch` cannot be both a room and a function: importing one would hide the other."""
    shared = []
    for door in (p for p in FILES if p.name == "__init__.py"):
        inside = {p.stem for p in door.parent.iterdir()}
        for node in import_statements(door.read_text()):
            if isinstance(node, ast.ImportFrom):
                shared += [f"{door}: {alias.name}" for alias in node.names if (alias.asname or alias.name) in inside]
    assert shared == []


def private_imports(path: Path) -> list[str]:
    """The names with an underscore that a file imports from another module of ours; modules may have one."""
    found = []
    for node in import_statements(path.read_text()):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankwise"):
            place = SRC / node.module.replace(".", "/")
            names = [alias.name for alias in node.names if alias.name.startswith("_") and alias.name[:2] != "__"]
            found += [name for name in names if not ((place / name).is_dir() or (place / f"{name}.py").is_file())]
    return found


def test_names_with_an_underscore_stay_in_their_module(tmp_path):
    """Names without one are a module's interface; `__all__` stands in packages, and where other names are passed on."""
    assert {path: names for path in FILES if (names := private_imports(path))} == {}
    file = tmp_path / "planted.py"
    file.write_text("from rankwise import _files\nfrom rankwise.world import World, _hidden\n")
    assert private_imports(file) == ["_hidden"]


def named_like_its_module(path: Path) -> list[str]:
    """The functions and classes of a file, or of a package's door, that have the file's (the package's) name."""
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    return re.findall(rf"^(?:def|async def|class) ({stem})\b", path.read_text(), re.MULTILINE)


def test_no_function_shares_its_modules_name(tmp_path):
    """`from rankwise.x import y` is the module or the function, never a guess; the test itself can fail."""
    assert {path: names for path in FILES if (names := named_like_its_module(path))} == {}
    file = tmp_path / "planted.py"
    file.write_text("def planted():\n    pass\n\n\ndef other():\n    pass\n")
    assert named_like_its_module(file) == ["planted"]
