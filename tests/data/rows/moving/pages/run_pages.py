"""Execute annbatch's pages: ``python run_pages.py ARCHIVE FOLDER [PAGE ...]``; a report.json of each tells how it went.

Each page runs in an own process and an own empty folder, its blocks one after the other in one namespace, as a notebook
does. The processes are forks of this one, which has imported what takes long and has started no thread.
"""

import contextlib
import functools
import importlib
import io
import itertools
import json
import linecache
import os
import subprocess
import sys
import traceback
import types
import warnings
from pathlib import Path

import blocks
import checks
import making
import no_gpu
import stand_ins

from rankwise.data.store.decode.choice import choose_decoder

for slow in ("dask.array", "h5py", "torch", "torch.distributed", "xarray", "zarr"):
    importlib.import_module(slow)
choose_decoder()  # imports numba

# torchrun of the notebook, with all that it says in a file
TORCHRUN = f"""#!/bin/sh
{sys.executable} {Path(__file__).with_name("torchrun.py")} "$@" > torchrun.log 2>&1
cat torchrun.log
"""


def main(archive, folder, *chosen):
    """Run all pages, or those that are named."""
    folder = Path(folder).absolute()
    program = folder / "bin" / "torchrun"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(TORCHRUN)
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    wanted = [block for block in blocks.read_blocks(archive) if is_run(block)]
    for page, its in itertools.groupby(wanted, lambda block: block.page):
        if not chosen or page in chosen:
            in_a_fork(functools.partial(run_page, page, list(its)), folder / page.replace("/", "."))


def is_run(block):
    return block.kind in stand_ins.RUN and block.number not in stand_ins.NOT_RUN.get(block.page, {})


def in_a_fork(work, folder):
    """Call a function in a new process, in its folder; what it returns is there as report.json."""
    folder.mkdir()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{folder.name} ended with {os.waitstatus_to_exitcode(status)}")
        return
    status = 1
    try:
        os.chdir(folder)
        (folder / "report.json").write_text(json.dumps(work()))
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)


def run_page(page, its):
    """Prepare, run each block until one fails, then look at what they have made."""
    told = {"page": page, "gpu_played": no_gpu.play_gpu(), "blocks": {}, "error": None, "warnings": []}
    module = sys.modules["__main__"] = types.ModuleType("__main__")  # functions of the page can be pickled
    namespace = vars(module)
    namespace.update({"write_file": write_file, "run_shell": run_shell})
    try:
        namespace.update(making.prepare(page))
        with listening() as said:
            for block in its:
                told["blocks"][block.number] = run_block(block, namespace)
        told["warnings"] = sorted({f"{one.category.__name__}: {one.message}" for one in said})
        checks.check(page, namespace)
    except Exception:  # noqa: BLE001  (whatever a page raises is told)
        told["error"] = traceback.format_exc()
    told["log"] = "".join(path.read_text() for path in Path().glob("*.log"))
    return told


@contextlib.contextmanager
def listening():
    """Warnings of the blocks, but for those that they switch off."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        yield said


def run_block(block, namespace):
    """Execute a block; return what it printed."""
    text = block.text
    theirs, ours, _ = stand_ins.CHANGED.get(block.page, ("", "", ""))
    text = blocks.as_python(text.replace(theirs, ours) if theirs else text)
    name = f"<{block.page}, block {block.number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # for tracebacks
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, name, "exec"), namespace)
    return out.getvalue()


def write_file(name, text):
    """%%writefile."""
    Path(name).write_text(text)
    print(f"Writing {name}")


def run_shell(command):
    """!command: what it prints is printed by the cell; it has to end well, which a notebook would not ask for."""
    done = subprocess.run(["/bin/sh", "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
