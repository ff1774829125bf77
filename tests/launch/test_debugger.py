"""breakpoint: one rank is looked into, the others wait."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rankwise
from rankwise.errors import ConfigError
from rankwise.launch import debugger

SCRIPT = """
    import torch  # once, before the ranks are forked
    import os, rankwise
    from rankwise import vitals

    with rankwise.bind(device="cpu", timeout=120) as world:
        try:
            rankwise.breakpoint(rank=1)
        except RuntimeError as error:  # DesyncError on the others
            print("refused", "no input to read commands from" in str(error), flush=True)
        except rankwise.ConfigError as error:
            print("refused", "no input to read commands from" in str(error), flush=True)
        secret = 41 + world.rank
        rankwise.breakpoint()
        own = vitals.read(os.environ["RANKWISE_VITALS"])[world.rank]
        waited = world.rank == 0 or own.phase == "breakpoint"
        print("went on", world.all_reduce(int(waited)), flush=True)
"""


@pytest.mark.timeout(400)
def test_one_rank_is_looked_into(tmp_path):
    """Under `rankwise run`: commands go to rank 0, in the caller's frame; the other rank beats; all go on."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "--nproc", "2", "--tee", "all", "--no-merge", "train.py"],
        cwd=tmp_path,
        input="p secret + 1000\nc\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(rank 0) 1041" in done.stdout
    assert done.stdout.count("refused True") == 2
    assert done.stdout.count("went on 2") == 2


def test_a_rank_that_cannot_be_looked_into(monkeypatch):
    """No such rank, or no input: an error instead of a debugger that ends at once."""
    with pytest.raises(ConfigError, match=r"breakpoint\(rank=3\): this world of 1 has no such rank"):
        rankwise.breakpoint(rank=3)
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(debugger.sys, "stdin", nothing)
        with pytest.raises(ConfigError, match="no input to read commands from"):
            rankwise.breakpoint()
