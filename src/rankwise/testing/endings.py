"""Run scripts to the end of their interpreter in forks of one process, which has imported what takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# In a fork of `python -c` the end of the program is the end of an interpreter, with all that happens there.
_FORKS = """
import json, os, sys
_imports, _scripts, _folder = json.loads(sys.stdin.read())
exec(_imports)
_codes = []
for _number, _script in enumerate(_scripts):
    _child = os.fork()
    if _child == 0:
        for _stream in (1, 2):
            os.dup2(os.open(f"{_folder}/{_number}.{_stream}", os.O_WRONLY | os.O_CREAT), _stream)
        break
    _codes.append(os.waitstatus_to_exitcode(os.waitpid(_child, 0)[1]))
else:
    print(json.dumps(_codes), flush=True)
    os._exit(0)
exec(_script)
"""


def run_endings(
    imports: str, scripts: Sequence[str], timeout_s: float = 240.0
) -> list[subprocess.CompletedProcess[str]]:
    """Run each script, one after the other, in a process of its own; return how each ended and what it printed.

    Args:
        imports: what all of them import; it must start no threads.
        scripts: programs, which see the names that `imports` defines.
        timeout_s: for all of them together.

    Raises:
        subprocess.CalledProcessError: the imports failed.
        subprocess.TimeoutExpired: a script did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603  (programs of tests)
            [sys.executable, "-c", _FORKS],
            input=json.dumps([imports, list(scripts), folder]),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
        return [
            subprocess.CompletedProcess(
                script, code, *(Path(folder, f"{number}.{stream}").read_text() for stream in (1, 2))
            )
            for number, (script, code) in enumerate(zip(scripts, json.loads(done.stdout), strict=True))
        ]
