"""What the commands say where torch is missing."""

import os
import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
"""


@pytest.mark.parametrize("words", [["doctor", "--only", "ranks"], ["verify", "own.py"], ["profile", "own.py"], []])
def test_without_torch(tmp_path, words):
    """The doctor of a launched job, what records a script, and `bind` say what to install."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    (tmp_path / "own.py").write_text('import rankwise\nwith rankwise.bind(device="cpu"):\n    pass\n')
    launch = ["run", "--nproc", "2"] + (["-m", "rankwise", *words] if words else ["own.py"])
    command = [sys.executable, "-m", "rankwise", *(launch if words[:1] in (["doctor"], []) else words)]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode
    assert "pip install 'rankwise[train]'" in done.stdout + done.stderr
    assert ("Traceback" in done.stdout + done.stderr) == (words[:1] != ["doctor"])
