"""Where the house stands on its way to fewer, fuller files: a measure may get better, never worse.

The goal of each measure stands beside its limit; whoever betters one lowers the limit. ``pytest -s`` prints them all.
"""

import ast
import runpy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/rankwise/data"
# What is public under `rankwise.data`: tests that import deeper names are tied to how things are built.
PUBLIC = set(runpy.run_path(str(ROOT / "docs/build_api.py"))["PACKAGES"])


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def imported(path: Path) -> list[str]:
    """The modules of the data rooms that a file imports names from."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [node.module for node in nodes if node.module and node.module.startswith("rankwise.data.")]


def modules_of_a_loader() -> list[str]:
    """What a fresh process has loaded after the import of the rows' loader."""
    program = "import sys; from rankwise.data.rows import Loader; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


WAY_OF_A_BATCH = """
import sys, threading
import numpy as np, zarr
from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.world import World

zarr.create_array("x.zarr", data=np.arange(4000.0).reshape(1000, 4), chunks=(16, 4), shards=(256, 4))
source, called = ArraySource({"x": "x.zarr"}), set()

def note(frame, event, _):
    if event == "call" and "/rankwise/" in frame.f_code.co_filename:
        called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

for seed, trace in enumerate((None, note)):  # the first epoch also compiles and opens
    loader = SampleLoader(source, order=Order(source, batch_size=64, seed=seed), world=World.single(), device=None)
    threading.setprofile(trace)
    sys.setprofile(trace)
    for _ in loader:
        pass
    sys.setprofile(None)
    threading.setprofile(None)
print(len(called), len({file for file, _ in called}))
"""


def way_of_a_batch() -> list[int]:
    """Functions and files of ours that an epoch of a loader over arrays runs through, its reader's thread included."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WAY_OF_A_BATCH]
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    return [int(number) for number in told.split()]


# The doors for loaders, DataLoaders and datasets of others: only there they are asked what they have.
DOORS = {ROOT / "src/rankwise" / name for name in ("train/foreign.py", "train/stream_data.py", "data/samples/keyed.py")}


def probes() -> int:
    """How often a source, an order or a loader is asked with `getattr` or `hasattr` what it has, behind the doors."""
    folders = [
        DATA / "contract",
        DATA / "feed",
        DATA / "order",
        DATA / "samples",
        DATA / "crops",
        ROOT / "src/rankwise/train",
    ]
    found = 0
    for path in {path for folder in folders for path in folder.rglob("*.py")} - DOORS:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                asked = ast.unparse(node.args[0]).rsplit(".", 1)[-1].lstrip("_")
                found += asked in ("source", "order", "loader", "train", "samples", "dataset")
    return found


def measured() -> dict[str, float]:
    """Every measure by its name."""
    files = [path for path in DATA.rglob("*.py") if path.name != "__init__.py"]
    doors = list(DATA.rglob("__init__.py"))
    sizes = [lines(path) for path in files]
    folders = [sum(path.suffix == ".py" for path in door.parent.iterdir()) for door in doors]
    private, all_lines = 0, 0
    for path in (ROOT / "tests").rglob("*.py"):
        count = lines(path)
        all_lines += count
        private += count * bool(set(imported(path)) - PUBLIC)
    functions, way = way_of_a_batch()
    return {
        "functions on the way of a batch": functions,
        "files on the way of a batch": way,
        "probes of a source, an order, a loader": probes(),
        "files": len(files) + len(doors),
        "lines": sum(sizes) + sum(map(lines, doors)),
        "median lines of a file": -statistics.median(sizes),
        "most files in a folder": max(folders),
        "files under 60 lines": sum(size < 60 for size in sizes),
        "modules that end in -ing": sum(path.stem.endswith("ing") for path in files),
        "modules of ours that a rows loader loads": sum(name.startswith("rankwise") for name in modules_of_a_loader()),
        "percent of test lines in files that import private data modules": round(100 * private / all_lines),
    }


# measure: (limit, goal); a measure that should grow is counted negative
LIMITS = {
    "functions on the way of a batch": (380, 250),
    "files on the way of a batch": (49, 40),
    "probes of a source, an order, a loader": (0, 0),
    "files": (248, 200),
    "lines": (45_930, 28_000),
    "median lines of a file": (-206, -130),
    "most files in a folder": (14, 14),
    "files under 60 lines": (7, 30),
    "modules that end in -ing": (7, 10),
    "modules of ours that a rows loader loads": (134, 160),
    "percent of test lines in files that import private data modules": (20, 20),
}


@pytest.fixture(scope="module")
def today():
    return measured()


@pytest.mark.parametrize("measure", LIMITS)
def test_the_house_gets_no_worse(today, measure):
    """Files merge, tests move to the seams: what was reached is kept."""
    limit, goal = LIMITS[measure]
    print(f"{measure}: {abs(today[measure])}, limit {abs(limit)}, goal {abs(goal)}")
    assert today[measure] <= limit


def test_every_measure_has_a_limit(today):
    """A measure without a limit would hold nothing."""
    assert set(today) == set(LIMITS)


def test_data_rooms_load_nothing_heavy():
    """Compiled code, torch and the libraries of tables are loaded by what needs them, when it needs them."""
    program = "import sys, rankwise.data.rows, rankwise.data.crops, rankwise.data.samples, rankwise.data.store"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert (
        set(done.stdout.split()) & {"torch", "jax", "numba", "llvmlite", "zarr", "pandas", "anndata", "scipy"} == set()
    )
