"""A worker process that runs tasks on request and answers in JSON, with the cost of each.

Each compared program has its own process. So thread pools, memory and settings stay apart, and CPU time can be
attributed. Only one process works at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from _common.machine import cpu_s, resident_bytes


def run_module(module: str, *words: str, **environment: str) -> Any:
    """Run a module of the benchmark in a new process; return what its last line of output says in JSON.

    Args:
        module: such as "_crops.fresh".
        *words: its arguments.
        **environment: variables that it gets besides ours.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


class Worker:
    """Starts a module of the benchmark that calls `serve`; a context manager.

    Args:
        title: for messages.
        module: such as "_rows.process".
        words: its arguments.
        python: the interpreter.
        environment: variables that it gets besides ours.
    """

    def __init__(
        self,
        title: str,
        module: str,
        *words: str,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # another interpreter must not find the packages of this one
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
        self._title = title
        self._process = subprocess.Popen(
            [python, "-m", module, *words],
            cwd=Path(__file__).parents[1],
            env={**kept, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Give work and wait for the answer.

        Raises:
            RuntimeError: the process ended.
        """
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self._title} ended with {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Answer one line of JSON for each line of standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    for line in sys.stdin:
        answers.write(json.dumps(answer(**json.loads(line))) + "\n")
        answers.flush()


def timed(batches: Iterable[object], children: tuple[int, ...] = ()) -> dict[str, float]:
    """CPU seconds of all threads and children, and wall seconds, that going through batches takes."""
    begun, spent = time.perf_counter(), cpu_s(children)
    for _ in batches:
        pass
    return {
        "cpu_s": cpu_s(children) - spent,
        "wall_s": time.perf_counter() - begun,
        "resident_bytes": resident_bytes(),
    }
