"""Ray Train on one machine: the script of docs/ray.md, in which Ray's workers call `rankwise.bind()`.

Ray is heavy and no extra installs it: `pip install "ray[train]"`, then `pytest -m slow tests/world/test_ray.py`.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason='needs Ray: pip install "ray[train]"'),
]
PAGE = Path(__file__).parents[2] / "docs" / "ray.md"

DIES = """
import os, signal

class Dies:
    def __init__(self, marker):
        self.marker = marker

    def step_end(self, trainer, report):
        if int(os.environ["RANK"]) == 1 and trainer.session.progressed.num_steps == 5 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""

DIFFER = """
def train(config):
    import os

    try:
        with rankwise.bind(seed=int(os.environ["RANK"])):
            pass
    except rankwise.RankwiseError as error:
        pathlib.Path(config["run"] + "-" + os.environ["RANK"]).write_text(str(error))
    with rankwise.bind(seed=7) as world:
        assert rankwise.World.current() is world
        assert (world.rank, world.world_size, world.num_nodes) == (int(os.environ["RANK"]), 2, 1)
        assert world.all_reduce(world.local_rank) == 1
    assert world.all_reduce(1) == 2, "the group is Ray's, and goes on"
"""


def run(folder, script):
    folder.mkdir()
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py", str(folder)], cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def page():
    return re.search(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]


def test_the_page_trains_as_one_process_does_also_when_a_worker_dies(tmp_path, monkeypatch):
    """Two workers of Ray, undisturbed and with one killed after five steps, end where one process ends."""
    import torch

    script = page()
    run(tmp_path / "two", script)
    beginning, end = script.split('if __name__ == "__main__":')
    run(
        tmp_path / "dies",
        beginning
        + DIES
        + '\n\nif __name__ == "__main__":'
        + end.replace('"hooks": []', '"hooks": [Dies(folder / "died")]'),
    )
    assert (tmp_path / "dies" / "died").exists()
    space = {}
    exec(beginning, space)
    monkeypatch.chdir(tmp_path)
    space["train"]({"run": "one", "hooks": []})
    one = torch.load("one/weights.pt")
    for folder in ("two", "dies"):
        found = torch.load(tmp_path / folder / "run" / "weights.pt")
        for name, value in one.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-14)


def test_the_group_is_rays(tmp_path):
    """Ranks that bind with other seeds are refused on every rank; a second bind works, and leaves the group alone."""
    beginning, end = page().split('if __name__ == "__main__":')
    run(tmp_path / "seeds", beginning + DIFFER + '\n\nif __name__ == "__main__":' + end)
    for rank in range(2):
        assert "has seed 1" in (tmp_path / "seeds" / f"run-{rank}").read_text()
