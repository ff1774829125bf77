"""Where the house stands on its way to fewer, fuller files: a measure may get better, never worse.

The goal of each measure stands beside its limit; whoever betters one lowers the limit. ``pytest -s`` prints them all.
"""

import ast
import io
import runpy
import statistics
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/rankwise/data"
# Rooms are measured together where design gave them one budget (docs/decisions/0038-lines-by-room.md).
ROOMS = {
    "world": ("world",),
    "launch": ("launch",),
    "train and guard": ("train", "guard"),
    "metrics, checkpoint, tracking": ("metrics", "checkpoint", "tracking"),
    "diagnose": ("diagnose",),
    "cli and testing": ("cli", "testing"),
}
# What is public under `rankwise.data`: tests that import deeper names are tied to how things are built.
PUBLIC = set(runpy.run_path(str(ROOT / "docs/build_api.py"))["PACKAGES"])


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def imported(path: Path) -> list[str]:
    """The modules of the data rooms that a file imports names from."""
    text = path.read_text()
    if "rankwise.data." not in text:
        return []
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return [node.module for node in nodes if node.module and node.module.startswith("rankwise.data.")]


def modules_of_a_loader() -> list[str]:
    """What a fresh process has loaded after the import of the rows' loader."""
    program = "import sys; from rankwise.data.rows import Loader; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


WAY_OF_A_STEP = """
import sys, threading
import numpy as np, torch, zarr
from rankwise import Order, World

called, frames = set(), 0

def note(frame, event, what):
    global frames
    if not noting:
        return
    if event == "call" and "/rankwise/" in frame.f_code.co_filename:
        called.add((frame.f_code.co_filename, frame.f_code.co_qualname))
    if event == "c_call" and what.__name__ in ("pread", "preadv"):
        depth, above = 1, frame
        while above := above.f_back:
            depth += 1
        frames = max(frames, depth)

def each_step():
    # the first steps also compile, open and prepare; a window is read every few steps, so hundreds are noted
    global noting, steps
    steps += 1
    noting = 5 < steps < 400
    if steps in (6, 400):
        sys.setprofile(note if noting else None)

def way_of_fit():
    from rankwise.data.samples import ArraySource, SampleLoader
    from rankwise.train import Trainer

    data = np.arange(120_000, dtype="f4").reshape(30_000, 4) % 7
    zarr.create_array("x.zarr", data=data, chunks=(16, 4), shards=(256, 4))
    source = ArraySource({"x": "x.zarr"})
    order = Order(source, batch_size=64, seed=1, window=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    losses = lambda model, batch: each_step() or model(batch["x"])[:, 0]
    trainer = Trainer(model, optimizer, losses, run=False, progress=False)
    trainer.fit(SampleLoader(source, order=order, world=World.single(), device="cpu"), epochs=1)

def way_of_rows():
    import anndata, scipy.sparse
    from rankwise.data.rows import OrderedLoader, write_sharded

    table = anndata.AnnData(scipy.sparse.random(30_000, 50, 0.1, format="csr", dtype="f4", random_state=0))
    write_sharded(zarr.open_group("rows.zarr", mode="w"), table)
    order = Order("rows.zarr", batch_size=64, seed=1, window=2)
    for batch in OrderedLoader("rows.zarr", order=order, world=World.single(), device=None):
        each_step()

for way in (way_of_fit, way_of_rows):
    noting, steps = False, 0
    called.clear()
    threading.setprofile(note)
    way()
    threading.setprofile(None)
    assert steps > 400 and any("planner" in file for file, _ in called), "no read was noted"
    print(len(called), len({file for file, _ in called}), frames)
"""


def ways_of_a_step() -> list[int]:
    """What of ours the steps of a training over arrays, and of a loop over ordered rows, run through once they run.

    Returns:
        For each: functions (comprehensions count), files, and frames from the start of the reader's thread to the read
        of a file; the reader's threads are included, and the start of the loop is not.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", WAY_OF_A_STEP]
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    return [int(number) for number in told.split()]


# The doors for loaders, DataLoaders and datasets of others: only there they are asked what they have.
DOORS = {
    ROOT / "src/rankwise" / name
    for name in ("train/loaders/foreign.py", "train/loaders/stream_data.py", "data/samples/keyed.py")
}


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
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "getattr(" in text or "hasattr(" in text else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                asked = ast.unparse(node.args[0]).rsplit(".", 1)[-1].lstrip("_")
                found += asked in ("source", "order", "loader", "train", "samples", "dataset")
    return found


PRAGMAS = ("# noqa", "# type:", "# fmt")


def thread_comments() -> float:
    """Comments in 100 lines of code of the files that import threading; docstrings and pragmas are neither."""
    comments = code = 0
    for path in (ROOT / "src/rankwise").rglob("*.py"):
        text = path.read_text()
        if "threading" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        if "threading" not in imports:
            continue
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments += sum(each.type == tokenize.COMMENT and not each.string.startswith(PRAGMAS) for each in tokens)
        described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = [node.body[0] for node in nodes if isinstance(node, described) and ast.get_docstring(node) is not None]
        skipped = {line for doc in docs for line in range(doc.lineno, doc.end_lineno + 1)}
        code += sum(
            bool(line.strip()) and not line.lstrip().startswith("#") and number not in skipped
            for number, line in enumerate(text.splitlines(), start=1)
        )
    return 100 * comments / code


def lines_of(*rooms: str) -> int:
    """Lines of all files in some folders of the package."""
    return sum(lines(path) for room in rooms for path in (ROOT / "src/rankwise" / room).rglob("*.py"))


def measured() -> dict[str, float]:
    """Every measure by its name."""
    files = [path for path in DATA.rglob("*.py") if path.name != "__init__.py"]
    doors = list(DATA.rglob("__init__.py"))
    sizes = [lines(path) for path in files]
    folders = {
        door.parent: sum(path.suffix == ".py" for path in door.parent.iterdir())
        for door in (ROOT / "src/rankwise").rglob("__init__.py")
    }
    everywhere = [lines(path) for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    private, all_lines = 0, 0
    for path in (ROOT / "tests").rglob("*.py"):
        count = lines(path)
        all_lines += count
        private += count * bool(set(imported(path)) - PUBLIC)
    fit, fit_files, fit_frames, rows, rows_files, rows_frames = ways_of_a_step()
    return {
        "functions on the way of a step of Trainer.fit": fit,
        "files on the way of a step of Trainer.fit": fit_files,
        "functions on the way of a step of ordered rows": rows,
        "files on the way of a step of ordered rows": rows_files,
        "frames from the reader's thread to the read of a file": max(fit_frames, rows_frames),
        "probes of a source, an order, a loader": probes(),
        "files": len(files) + len(doors),
        "lines": lines_of("data"),
        **{f"lines of {name}": lines_of(*rooms) for name, rooms in ROOMS.items()},
        "median lines of a file": -statistics.median(sizes),
        "most files in a folder": max(folders[door.parent] for door in doors),
        "most files in a folder of any room": max(folders.values()),
        "files under 60 lines": sum(size < 60 for size in sizes),
        "files under 60 lines in all rooms": sum(size < 60 for size in everywhere),
        "modules that end in -ing": sum(path.stem.endswith("ing") for path in files),
        "comments in 100 lines of code where threads meet": -round(thread_comments(), 1),
        "modules of ours that a rows loader loads": sum(name.startswith("rankwise") for name in modules_of_a_loader()),
        "percent of test lines in files that import private data modules": round(100 * private / all_lines),
    }


# measure: (limit, goal); a measure that should grow is counted negative. Ways vary by some functions, with what waits
# for what, so their limits leave room.
LIMITS = {
    "functions on the way of a step of Trainer.fit": (315, 320),
    "files on the way of a step of Trainer.fit": (51, 50),
    "functions on the way of a step of ordered rows": (272, 300),
    "files on the way of a step of ordered rows": (47, 50),
    "frames from the reader's thread to the read of a file": (13, 14),
    "probes of a source, an order, a loader": (0, 0),
    "files": (183, 200),
    "lines": (37_728, 28_000),
    "lines of world": (4_352, 4_000),
    "lines of launch": (9_912, 4_000),
    "lines of train and guard": (8_111, 6_000),
    "lines of metrics, checkpoint, tracking": (6_758, 5_000),
    "lines of diagnose": (17_703, 8_000),
    "lines of cli and testing": (4_322, 3_000),
    "median lines of a file": (-240, -130),
    "most files in a folder": (12, 14),
    "most files in a folder of any room": (14, 14),
    "files under 60 lines": (4, 30),
    "files under 60 lines in all rooms": (26, 50),
    "modules that end in -ing": (0, 10),
    "comments in 100 lines of code where threads meet": (-7, -6),
    "modules of ours that a rows loader loads": (108, 160),
    "percent of test lines in files that import private data modules": (18, 20),
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
