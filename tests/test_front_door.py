"""The front door: a frozen table of contents that opens without the heavy rooms behind it."""

import json
import subprocess
import sys

import pytest

import rankwise

FROZEN = [
    "Checkpointer",
    "ConfigError",
    "Device",
    "Max",
    "Mean",
    "Min",
    "Order",
    "Platform",
    "RankFailure",
    "RankwiseError",
    "Sum",
    "Tracker",
    "Trainer",
    "World",
    "Wrapper",
    "__version__",
    "bind",
    "breakpoint",
    "guarded",
    "prepare",
    "run",
    "watch",
    "wrapper",
]
HEAVY = ("torch", "zarr", "numba", "pandas", "scipy")
# The promise is 0.3 s of CPU, on a machine that is not busy: beside 16 others the same work counts twice as much. The
# number of modules is the sharp limit, the time a generous one.
CPU_LIMIT_S = 1.0


def test_the_names_are_frozen():
    """A new public name is a decision, taken here and in the changelog."""
    assert rankwise.__all__ == FROZEN


def test_every_name_opens():
    """Each name of the table resolves, and unknown ones are an AttributeError."""
    assert all(getattr(rankwise, name) is not None for name in FROZEN)
    assert set(FROZEN) <= set(dir(rankwise))
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        _ = rankwise.Loader


def test_rooms_need_no_import_of_their_own():
    """`rankwise.vitals.beat` is found in a process that has imported `rankwise` alone, whatever it used before."""
    code = "import rankwise; print(rankwise.vitals.beat.__name__, rankwise.errors)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("beat <module")
    assert all(getattr(rankwise, room).__name__ == f"rankwise.{room}" for room in ("data", "metrics", "train", "world"))


def test_modules_of_rows_need_no_import_of_their_own():
    """`rows.samplers.RandomSampler` is found in a process that has imported `rows` alone."""
    code = "from rankwise.data import rows; print(rows.samplers.RandomSampler.__name__, rows.types)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("RandomSampler <module")


@pytest.mark.parametrize(
    ("code", "max_modules"),
    [
        ("import rankwise", 120),
        (
            (
                "import sys, contextlib; sys.argv = ['rankwise', '--help']; import rankwise.cli\n"
                "with contextlib.suppress(SystemExit): rankwise.cli.main()"
            ),
            480,
        ),
    ],
    ids=["import", "help"],
)
def test_opening_it_is_cheap(code, max_modules):
    """`import rankwise` and `rankwise --help` load few modules, no torch, zarr or numba among them, in little time."""
    report = (
        f"import json, sys, time\n{code}\n"
        f"print(json.dumps([time.process_time(), len(sys.modules), [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    costs = []
    for _ in range(3):
        out = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True).stdout
        cpu_s, num_modules, loaded = json.loads(out.splitlines()[-1])
        assert loaded == []
        assert num_modules < max_modules
        costs.append(cpu_s)
    assert min(costs) < CPU_LIMIT_S
