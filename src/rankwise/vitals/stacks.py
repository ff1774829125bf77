"""Parse stacks in `faulthandler`'s format: the user code that a rank executes, and whether it waits for others."""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_COLLECTIVE = ("torch/distributed/", "rankwise/world/")
_BACKWARD = ("torch/autograd/",)
_NEAR = 6  # maximum number of frames between a call that blocks in C and the function name that identifies it
_PYTHON = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_HERE = str(Path(__file__).parents[1])
_OURS = (
    "rankwise/vitals/recorder.py",
    "rankwise/vitals/collectives.py",
    "rankwise/diagnose/watch/",
    "rankwise/launch/child.py",
    "rankwise/launch/local/forks/server.py",
    "rankwise/launch/functions/callee.py",
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def shorten_stacks(stacks: str) -> str:
    """Remove rankwise's threads, frames of the import system, and the main thread's frames above the user's program."""
    blocks = re.split(r"\n\s*\n", stacks.strip())
    theirs = [block for block in blocks if _OURS[0] not in block and _OURS[2] not in block]
    lines = [line for block in theirs for line in [*block.splitlines(), ""]]
    return "\n".join(
        line for line in lines if '"<frozen ' not in line and not any(part in line for part in _OURS)
    ).rstrip()


def place(stacks: str) -> str:
    """Return "file:line in function" of the main thread's innermost user frame, else of its innermost frame.

    If that line calls a method of `World`, its name is added: the backend's collective often has another name.
    """
    frames = _main_frames(stacks)
    own = [frame for frame in frames if not frame["file"].startswith((*_PYTHON, "<", _HERE))]
    own = [frame for frame in own if not _within([frame["file"]], _INSTALLED)]
    if not frames:
        return ""
    chosen = (own or frames)[0]
    called = frames[max(0, frames.index(chosen) - 1)]
    of_world = f" calling World.{called['name']}" if called["file"] == f"{_HERE}/world/value.py" else ""
    return f"{chosen['file']}:{chosen['line']} in {chosen['name']}{of_world}"


def waits(stacks: str) -> int:
    """Return how likely a rank waits for others: 2: it is in a collective; 1: perhaps, in a backward pass; 0: no.

    DDP waits for its collectives in C++ at the end of `backward`, without a frame of torch.distributed. User code that
    a library calls, and the import of a library, do not count as waiting.
    """
    inner = list(itertools.takewhile(_is_library, (frame["file"] for frame in _main_frames(stacks))))
    if any(file.startswith("<frozen importlib") for file in inner):
        return 0
    near = inner[:_NEAR]
    return 2 if _within(near, _COLLECTIVE) else int(_within(near, _BACKWARD))


def imports(stacks: str) -> bool:
    """Whether the main thread is importing a module."""
    return any(frame["file"].startswith("<frozen importlib") for frame in _main_frames(stacks))


def _main_frames(stacks: str) -> list[re.Match[str]]:
    """Return the main thread's frames, innermost first; faulthandler writes the oldest thread last."""
    block = re.split(r"^(?:Current thread|Thread) 0x.*$", stacks, flags=re.MULTILINE)[-1]
    return [match for match in map(_FRAME.match, block.splitlines()) if match]


def _within(files: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in file for file in files for part in parts)


def _is_library(file: str) -> bool:
    """Whether a frame belongs to torch, rankwise or Python itself."""
    return "/torch/" in file or (file.startswith((*_PYTHON, "<frozen ", _HERE)) and not _within([file], _INSTALLED))
