"""From the cells of a real kernel: functions defined there, output while it comes, interrupts, run after run."""

import asyncio
import re
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path

import nbclient
import nbformat
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
LIMIT_S = 240
CELLS = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Notebook:
    """A kernel, and the cells that were run in it."""

    def __init__(self, folder):
        self.book = nbformat.v4.new_notebook()
        self.client = nbclient.NotebookClient(
            self.book, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )

    def start(self, source):
        """Begin to run a cell; return it and the task that ends with it."""
        self.book.cells.append(nbformat.v4.new_code_cell(textwrap.dedent(source)))
        number = len(self.book.cells) - 1
        return self.book.cells[-1], asyncio.ensure_future(self.client.async_execute_cell(self.book.cells[-1], number))

    async def run(self, source):
        """Run a cell and return what it wrote."""
        cell, task = self.start(source)
        await task
        return written(cell)


def written(cell, stream="stdout"):
    return "".join(out.text for out in cell.outputs if out.output_type == "stream" and out.name == stream)


async def until(condition, task):
    """Wait for a condition while a cell runs; a cell that ends before fails the test."""
    for _ in range(LIMIT_S * 50):
        if condition():
            return
        assert not task.done(), task.exception()
        await asyncio.sleep(0.02)
    pytest.fail("the condition did not come true")


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Make a notebook in a folder of its own, which also holds what kernels leave behind."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")

    @asynccontextmanager
    async def opened():
        made = Notebook(tmp_path)
        async with made.client.async_setup_kernel():
            yield made

    return opened


def test_the_page_runs_cell_by_cell(notebook):
    """Every cell of the page, in one kernel; the line of rank 0 and the last state of its progress bar are shown."""

    async def play():
        async with notebook() as book:
            return [await book.run(cell) for cell in CELLS.findall(PAGE.read_text())]

    texts = asyncio.run(play())
    assert texts[0] == "2 ranks have 30.0\n"
    assert texts[2].endswith("\r100 %\n")


WATCH = """
    import os, pathlib, sys, time
    import rankwise

    def watch():
        print("100 % ███", end="", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)
        print(" done")
        return os.environ["MPLBACKEND"], os.path.samestat(os.fstat(0), os.stat(os.devnull))

    print(rankwise.run(watch, num_ranks=2))
"""
WAIT = """
    def wait():
        pathlib.Path("pid-" + os.environ["RANK"]).write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    rankwise.run(wait, num_ranks=2)
"""


def test_output_lives_and_an_interrupt_ends_the_ranks(notebook, tmp_path, is_alive):
    """An unfinished line is there while ranks run; no rank outlives an interrupt or the kernel; the next run works."""
    pids = [tmp_path / "pid-0", tmp_path / "pid-1"]

    def numbers():
        return [int(path.read_text() or 0) for path in pids if path.exists()]

    async def play():
        async with notebook() as book:
            cell, task = book.start(WATCH)
            await until(lambda: "100 % ███" in written(cell), task)
            (tmp_path / "go").write_text("")
            await task
            assert written(cell) == "100 % ███ done\n[('agg', True), ('agg', True)]\n"
            cell, task = book.start(WAIT)
            await until(lambda: len(list(filter(None, numbers()))) == 2, task)
            await book.client.km.interrupt_kernel()
            with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
                await task
            assert not any(map(is_alive, numbers())), "none is left when the cell ends"
            assert "SIGINT: asking the ranks to end" in written(cell, "stderr")
            assert await book.run("print(rankwise.run(os.getenv, 'RANK', num_ranks=2))") == "['0', '1']\n"
            for path in pids:
                path.unlink()
            cell, task = book.start(WAIT)
            await until(lambda: len(list(filter(None, numbers()))) == 2, task)
            await book.client.km.shutdown_kernel(now=True)
            with pytest.raises(nbclient.exceptions.DeadKernelError):
                await task
            for _ in range(LIMIT_S * 50):
                if not any(map(is_alive, numbers())):
                    return
                await asyncio.sleep(0.02)
            pytest.fail("ranks outlive their kernel")

    asyncio.run(play())
