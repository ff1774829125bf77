"""RANKWISE_WATCH in jobs of torchrun, Accelerate, Fabric and Lightning that know nothing of it: culprit, line."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("trainers.py")
SECONDS = 240
PLACES = {"plain": "rankwise-stalls", "accelerated": "stalls", "fabric": "run/logs", "trainer": "rankwise-stalls"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of all four jobs, which run at once and are killed in the end."""
    for library in ("accelerate", "lightning"):
        pytest.importorskip(library)
    folder = tmp_path_factory.mktemp("trainers")
    env = {name: value for name, value in os.environ.items() if not name.startswith("RANKWISE_")}
    process = subprocess.Popen(
        [sys.executable, JOB, folder],
        env=env | {"RANKWISE_WATCH": "6", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip() == "started"
    yield folder
    process.communicate("", timeout=60)


@pytest.mark.parametrize("case", PLACES)
def test_the_rank_and_its_line_are_named_and_kept(folder, case):
    """Rank 0 waits for gradients in DDP's backward; rank 1 is in load(); the answer says where it was saved."""
    log, deadline, text = folder / f"{case}.log", time.monotonic() + SECONDS, ""
    while "saved as" not in text and time.monotonic() < deadline:
        text = log.read_text() if log.exists() else ""
        time.sleep(0.1)
    verdict = text.partition("no rank has advanced")[2].partition("----")[0]
    wanted = r"rank 1 has not joined \w*all_?reduce\w* #\d+ of the default group \(rank 0 waits there"
    assert re.search(wanted, verdict), text
    line = 1 + JOB.read_text().splitlines().index("        time.sleep(600)")
    assert re.search(rf"it is in \S*trainers\.py:{line} in load", verdict), text
    saved = Path(re.search(r"saved as (.*)", text)[1])
    assert saved.parent == folder / case / PLACES[case]
    assert json.loads(saved.with_suffix(".json").read_text())["verdict"]["ranks"] == [1]
