"""The pages' Lightning examples as they stand, on two ranks that Lightning's own launcher starts once for both."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")  # takes seconds
DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEVICES = 'devices=1,  # more: strategy="ddp"\n'
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
# Each rank runs the whole script, in a folder of its own: the page writes its data where it stands.
BEFORE = """
import json, os
from pathlib import Path

HERE = Path(__file__).parent / "FOLDER" / os.environ.get("LOCAL_RANK", "0")
HERE.mkdir(parents=True)
os.chdir(HERE)
"""
AFTER = """
seen, plain_step = [], MODULE.training_step

def noting(self, batches, number):
    seen.extend(sample for batch in batches for sample in batch.ids.tolist())
    return plain_step(self, batches, number)

MODULE.training_step = noting
weights = fit()
(HERE / "told.json").write_text(json.dumps({"seen": seen, "total": TOTAL, "weights": weights.flatten().tolist()}))
"""


PAGES = {
    "crops_in_other_loops.md": {"MODULE": "Module", "TOTAL": "48"},
    "rows_in_other_loops.md": {"MODULE": "Classifier", "TOTAL": "len(train)"},
}


def program_of(page):
    """The page's data, its example on two ranks, and what is told of it."""
    blocks = BLOCK.findall((DOCS / page).read_text())
    (example,) = (block for block in blocks if DEVICES in block)
    example = example.partition("\nwhole = fit()")[0].replace(DEVICES, 'devices=2, strategy="ddp",\n')
    program = "\n".join([BEFORE, blocks[0], example, AFTER])
    for name, value in {**PAGES[page], "FOLDER": page}.items():
        program = program.replace(name, value)
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where both pages ran, one after the other in the same processes."""
    folder = tmp_path_factory.mktemp("pages")
    script = folder / "pages.py"
    script.write_text("\n".join(map(program_of, PAGES)))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={key: value for key, value in os.environ.items() if key not in LAUNCHER} | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_two_devices_share_the_samples(page, folder):
    """Under ``devices=2, strategy="ddp"`` both ranks together see each sample once, and end with the same weights."""
    ranks = [json.loads((folder / page / str(rank) / "told.json").read_text()) for rank in range(2)]
    assert sorted(chain(*(rank["seen"] for rank in ranks))) == list(range(ranks[0]["total"]))
    assert min(len(rank["seen"]) for rank in ranks) > 0.4 * ranks[0]["total"]
    assert ranks[0]["weights"] == ranks[1]["weights"]
