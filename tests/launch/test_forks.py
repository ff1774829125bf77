"""Ranks that a fork server forks are as ranks that were started one by one, and where they might not be, they are."""

import ctypes
import functools
import importlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import parse as parse_version

from rankwise.errors import ConfigError
from rankwise.launch.functions import pickled_call
from rankwise.launch.job import Job
from rankwise.launch.local.environment import RankCores
from rankwise.launch.local.forks import client
from rankwise.launch.local.forks.preload import leading_imports, source_of
from rankwise.launch.target import Target

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
# what a rank can see of how it began; torch is imported first, so that the ranks may be forked
SEEN = """
    import atexit, ctypes, gc, json, os, random, resource, signal, sys, threading, warnings
    import torch
    import numpy
    import multiprocessing
    words = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(words), 0, 0, 0)
    streams = [sys.stdin, sys.stdout, sys.stderr]
    own = {name: os.environ.pop(name, None) for name in NAMES}
    seen = {
        "environ": dict(sorted(os.environ.items())),
        "argv": [sys.argv, [word for word in sys.orig_argv if not word.isdigit()], __name__, __file__, sys.path],
        "flags": [list(sys.flags), sys._xoptions, sys.warnoptions, str(warnings.filters)],
        "process": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), words.value, os.getcwd(), os.nice(0)],
        "limits": [resource.getrlimit(number) for name, number in sorted(vars(resource).items())
               if name.startswith('RLIMIT_')],
        "cores": [sorted(os.sched_getaffinity(0)), torch.get_num_threads(), threading.active_count()],
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.seekable(),
                     type(s.buffer).__name__, s.fileno(), os.readlink(f"/proc/self/fd/{s.fileno()}")[:4]]
                    for s in streams],
        "same": [sys.__stdout__ is sys.stdout, sys.__stderr__ is sys.stderr, sys.__stdin__ is sys.stdin],
        "files": len(os.listdir("/proc/self/fd")),
        "modules": sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names
                          and not name.startswith("rankwise.launch.")),
        "at exit": atexit._ncallbacks(),
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0],
    }
    random_ones = [torch.initial_seed(), random.random(), float(numpy.random.rand())]
    random_ones += [multiprocessing.current_process().authkey.hex()]
    command = open("/proc/self/cmdline", "rb").read()
    about = {"own": own, "forked": b"forks.server" in command, "early": command[-2:-1].isdigit(), "random": random_ones,
             "parent": os.getppid(), "line": sys.stdin.readline(), "seen": seen}
    with open(f"{os.environ['RANKWISE_START']}-{own['RANK']}", "w") as file:
        json.dump(about, file)
    print("out", own["RANK"], flush=True)
"""
CALL = """
if __name__ == "__main__":
    import rankwise, sys
    assert "torch" not in sys.modules
    more = {"A": "1"} if WITH_ENV else {}
    rankwise.run(each, 3, rate=NUM, num_ranks=2, tee="all", env=more)
"""
# by rank, or by attempt
NAMES = ["RANK", "LOCAL_RANK", "ROLE_RANK", "MASTER_PORT", "RANKWISE_VITALS", "RANKWISE_SECRET", "TORCHELASTIC_RUN_ID"]


def compare(folder, started, lines):
    """Two ranks that were forked, then two that were started one by one, see the same of themselves."""
    for start in ("auto", "fresh"):
        done = started(start)
        assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", *lines]), done.stderr
    texts = [[(folder / f"{start}-{rank}").read_text() for rank in (0, 1)] for start in ("auto", "fresh")]
    # a call lies in a folder of its own
    forked, fresh = ([json.loads(re.sub("rankwise-[0-9a-f]{12}", "call", text)) for text in one] for one in texts)
    assert [about["forked"] for about in (*forked, *fresh)] == [True, True, False, False]
    for rank in (0, 1):
        for name, value in fresh[rank]["seen"].items():
            if name == "environ":
                value["RANKWISE_START"] = "auto"
            assert forked[rank]["seen"][name] == value, name
        assert forked[rank]["own"].keys() == fresh[rank]["own"].keys()
        assert forked[rank]["own"]["RANK"] == forked[rank]["own"]["LOCAL_RANK"] == str(rank)
        assert forked[rank]["line"] == fresh[rank]["line"]
    assert forked[0]["parent"] == forked[1]["parent"]
    for mine, other in zip(forked[0]["random"], forked[1]["random"], strict=True):
        assert mine != other
    return [about["line"] for about in forked]


def test_a_forked_rank_is_as_one_that_was_started(launcher):
    """Environment, arguments, streams, limits, signals, modules: the same; generators: each rank its own."""
    script = launcher.script(SEEN.replace("NAMES", repr(NAMES)))
    (launcher.folder / "typed").write_text("a line\n")
    launcher.env["OMP_NUM_THREADS"] = "1"

    def started(start):
        with (launcher.folder / "typed").open() as typed:
            options = ("--nproc", 2, "--tee", "all", "--env", f"RANKWISE_START={start}", "--env", "A=b=c")
            # a descriptor that the launcher inherited is not for the ranks
            return launcher.run(*options, script, "word", "--flag", stdin=typed, pass_fds=(typed.fileno(),))

    assert compare(launcher.folder, started, ["[1] out 1", "out 0"]) == ["a line\n", ""]


@pytest.mark.parametrize(
    ("where", "with_env"),
    [("main", False), *(pytest.param("module", each, marks=pytest.mark.slow) for each in (True, False))],
)
def test_a_function_that_imports_torch_first(launcher, where, with_env):
    """Its ranks are forked too, from a caller that has no torch, and see what started ones see.

    The fork server starts before the supervisor has loaded, unless the ranks are to have variables of their own.
    """
    text = '"""Words."""\nimport os\n\nNUM = 3\n\ndef each(number, *, rate=0.5):\n    "Words."'
    text += SEEN.replace("NAMES", repr(NAMES))
    (launcher.folder / "near.py").write_text(text)
    main = text if where == "main" else "import near\nNUM, each = 3, near.each\n"
    (launcher.folder / "main.py").write_text(main + CALL.replace("WITH_ENV", str(with_env)))

    def started(start):
        launcher.env["RANKWISE_START"] = start
        # as a shell starts what is in the background, and nohup
        command = ["sh", "-c", 'trap "" INT QUIT HUP; exec "$@"', "sh", sys.executable, "main.py"]
        return subprocess.run(
            command, cwd=launcher.folder, env=launcher.env, capture_output=True, text=True, timeout=240, check=False
        )

    compare(launcher.folder, started, ["[1] out 1", "out 0"])
    about = json.loads((launcher.folder / "auto-0").read_text())
    assert about["early"] is not with_env


@pytest.mark.parametrize(("argument", "told"), [("[]", ""), ("threading.Lock()", "argument args[1] of each")])
def test_a_fork_server_that_was_started_for_nothing_ends(launcher, wait_until, marked, argument, told):
    """Ranks are started for arguments that need imports of their own, none for those that cannot be sent."""
    launcher.env["CELL"] = mark = secrets.token_hex(8)  # other workers have folders of the same name
    (launcher.folder / "near.py").write_text("def each(*_):\n    import torch\n    print('here', flush=True)\n")
    text = "import rankwise, near, threading\nif __name__ == '__main__':\n    import pathlib\n"
    text += f"    rankwise.run(near.each, pathlib.Path('.'), {argument}, num_ranks=2)\n"
    (launcher.folder / "main.py").write_text(text)
    command = [sys.executable, "main.py"]
    done = subprocess.run(
        command, cwd=launcher.folder, env=launcher.env, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == ((1, "") if told else (0, "here\n")), done.stderr
    assert told in done.stderr
    assert "service" not in done.stderr
    wait_until(lambda: not marked(mark))  # who holds no stream of the caller's may end a moment after it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_while_torch_is_loaded(launcher, wait_until, marked, number):
    """The supervisor is asked to end, or killed, before there are ranks: nothing is left."""
    launcher.env["CELL"] = mark = secrets.token_hex(8)
    process = launcher.start("--nproc", 2, launcher.script("import torch\nimport time; time.sleep(600)"))

    def server():
        return [pid for pid in marked(mark) if b"forks.server" in command_line(pid)]

    wait_until(server)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    wait_until(lambda: not marked(mark))
    assert "Traceback" not in err


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


REASONS = """
import os, subprocess, sys, threading, time, types
from rankwise.launch.local.forks import server
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: "cuda" in sys.argv))
path, told = list(sys.path), []
def load(name, *first):
    try:
        told.append(server._load([name], [*first, *path], *(first or [""])))
    finally:
        sys.path[:] = path
load("colorsys", sys.argv[1])
load("sndhdr" if sys.version_info < (3, 13) else "wave", sys.argv[1])
sys.modules.pop("sndhdr", sys.modules.pop("wave", None))
load("mimetypes", sys.argv[1])
sys.modules["sitecustomize"] = types.SimpleNamespace(__file__="/elsewhere/sitecustomize.py")
load("colorsys")
del sys.modules["sitecustomize"]
told.append(server._unsafe([]))
sys.settrace(lambda *_: None)
told.append(server._unsafe(server._open_fds()))
sys.settrace(None)
sys.argv.append("cuda")
told.append(server._unsafe(server._open_fds()))
sys.argv.remove("cuda")
gate = threading.Event()
thread = threading.Thread(target=gate.wait)
thread.start()
fds = server._open_fds()
told.append(server._unsafe(fds))
gate.set()
thread.join()
while len(os.listdir("/proc/self/task")) > 1:  # Python has joined it, the system ends it a moment later
    time.sleep(0.01)
child = subprocess.Popen([sys.executable, "-S", "-c", ""])
told.append(server._unsafe(fds))
child.wait()
told.append(server._unsafe(fds))
import this
told.append(server._unsafe(fds))
print("", *told, sep=chr(10))
"""


def test_what_must_not_be_forked(tmp_path):
    """A process that holds threads, descriptors, children, a tracer, or other modules than the ranks, serves nobody."""
    for name in ("sndhdr", "wave", "winreg"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('this is the program, which the server must not run')")
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-W", "ignore", "-c", REASONS, str(tmp_path)]
    with out.open("w") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True, timeout=240)
    shadow = "sndhdr" if sys.version_info < (3, 13) else "wave"
    assert out.read_text().split("\n")[-12:] == [
        "",
        f"the ranks would have loaded {tmp_path}/{shadow}.py",
        f"the ranks would have loaded {tmp_path}/winreg.py",  # which the library does without
        "sitecustomize may differ from rank to rank",
        "there are new descriptors",
        "the imports are traced",
        "CUDA is initialised",
        "there are threads",
        "there are child processes",
        "",
        "something was written",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch", ("torch",)),
        ('"""Words."""\nfrom __future__ import annotations\nimport os, sys\nimport torch.nn as nn\n1 / 0', ("torch",)),
        ("import numpy as np\nimport rankwise\nfrom torch.utils.data import DataLoader", ("numpy", "torch")),
        ("import os", ()),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", ()),
        ("import sys\nsys.path.insert(0, 'here')\nimport torch", ()),
        ("import warnings\nwarnings.filterwarnings('ignore')\nimport torch", ()),
        ("import pandas\nimport torch", ()),
        ("from . import near\nimport torch", ()),
        ("from settings import *\nimport torch", ()),
        ("x = 1\nimport torch", ()),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", ()),
        ("def f():\n    import torch", ()),
        ("import torch\n(", ()),
        ("# coding: latin-1\nimport torch\nname = '\xe9'", ("torch",)),
        ("import torch\npattern = '\\d'", ("torch",)),
    ],
)
def test_what_a_script_imports_first(tmp_path, text, names):
    """The server loads torch for the ranks if nothing stands before it that could change how it is loaded."""
    path = tmp_path / "script.py"
    path.write_bytes(text.encode("latin-1"))
    assert leading_imports(path) == names


@pytest.mark.parametrize(
    ("before", "inside", "names"),
    [
        ("", "import torch", ("torch",)),
        (
            '"""Words."""\nimport os\nimport numpy as np\nRATE = 0.1',
            '"""Words."""\n    import torch',
            ("numpy", "torch"),
        ),
        ("def other(a, b=1, *, c=None): import pandas", "import rankwise, torch", ("torch",)),
        ("if __name__ == '__main__':\n    import pandas", "import torch", ("torch",)),
        ("import torch", "import pandas", ("torch",)),
        ("if __name__ != '__main__':\n    import pandas", "import torch", ()),
        ("if __name__ == '__main__':\n    pass\nelse:\n    import pandas", "import torch", ()),
        ("import os\nos.environ['A'] = '1'", "import torch", ()),
        ("import os\nA = os.environ.pop('A', 1)", "import torch", ()),
        ("import pandas", "import torch", ()),
        ("class A: import pandas", "import torch", ()),
        ("def other(a=print()): pass", "import torch", ()),
        ("@print\ndef other(): pass", "import torch", ()),
        ("", "x = 1; import torch", ()),
        ("", "import pandas, torch", ()),
        ("", "if x: import torch", ()),
        ("def each(x=None):\n    import torch", "pass", ()),
    ],
)
def test_what_a_function_imports_first(tmp_path, before, inside, names):
    """As a script, if its file does nothing before."""
    path = tmp_path / "script.py"
    path.write_text(f"{before}\ndef each(x=None):\n    {inside}\n")
    assert leading_imports(path, "each") == names
    decorated = path.read_text().replace("def each", "@print\ndef each")
    path.write_text(decorated)
    assert leading_imports(path, "each") == (names if before == "import torch" else ())


def test_which_call_is_told(tmp_path, monkeypatch):
    """Only a plain function of a file that nothing else comes before, and arguments that load nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "near_one.py").write_text("def each(*_): pass\nclass A:\n    def each(self): pass\nsame = lambda: 1\n")
    near = importlib.import_module("near_one")
    told = (str(tmp_path / "near_one.py"), "each", [str(Path(entry).absolute()) for entry in sys.path])

    def first(fn, *args):
        _, target = pickled_call.pack_call(fn, args, {})
        return target["main"], target["function"], target["path"]

    assert first(near.each) == first(near.each, [1, "a", (None, 2.0)], {"b": b"c"}) == told
    nothing = ("", "", told[2])
    others = (near.A, functools.partial(near.each), near.A.each, near.A().each, near.same, parse_version, os.getpid)
    for other in others:
        assert first(other) == nothing
    assert first(near.each, Path()) == first(near.each, {"a": {1}}) == nothing


def test_which_file_comes_first(tmp_path, monkeypatch):
    """A script's own, a module's without a package, the caller's main program; else it is not clear."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "tool.pyz", "both.py"):
        Path(name).write_text("")
    Path("both").mkdir()
    here = str(tmp_path)
    assert source_of(Target(kind="script", name="train.py")) == (Path("train.py"), here)
    assert source_of(Target(kind="script", name="tool.pyz")) == (None, here)
    assert source_of(Target(kind="module", name="train")) == (tmp_path / "train.py", here)
    assert source_of(Target(kind="function", name="train:main")) == (tmp_path / "train.py", here)
    for name in ("both", "package.train", "torch"):
        assert source_of(Target(kind="module", name=name)) == (None, here)
    assert source_of(Target(kind="call", name="call")) == (None, None)
    assert source_of(Target(kind="call", name="call", main="/a/main.py")) == (Path("/a/main.py"), "/a")


def test_when_ranks_are_forked(tmp_path, monkeypatch):
    """Only ranks that are alike, unbound, beside no GPU and under no tool; RANKWISE_START=fresh is the way out."""
    script = tmp_path / "script.py"
    script.write_text("import torch")
    job = Job(target=Target(kind="script", name=str(script)), num_ranks=2)
    free, bound = RankCores(cpus=None, num_threads=1), RankCores(cpus=frozenset({0}), num_threads=1)
    ranks = [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}]

    def names(all_cores=(free, free), **more):
        return client.names_to_load(job, all_cores, [{**rank, **more} for rank in ranks])

    monkeypatch.setattr(client, "_has_gpu", lambda: False)
    assert names() == names(RANKWISE_START="auto") == ("torch",)
    assert names(RANKWISE_START="fresh") == names((bound, bound)) == ()
    monkeypatch.chdir(tmp_path)
    Path("later.py").write_text("RATE = 3\ndef main():\n    import torch\ndef other():\n    pass\n")
    for function, wanted in (("main", ("torch",)), ("other", ()), ("none", ())):
        later = Job(target=Target(kind="function", name=f"later:{function}"), num_ranks=2)
        assert client.names_to_load(later, (free, free), ranks) == wanted
    for tool in ("LD_PRELOAD", "COVERAGE_PROCESS_START"):
        assert names(**{tool: "something"}) == ()
    assert client.names_to_load(job, (free,), ranks[:1]) == ()
    assert client.names_to_load(job, (free, free), [ranks[0], {**ranks[1], "OMP_NUM_THREADS": "2"}]) == ()
    monkeypatch.setattr(client, "_has_gpu", lambda: True)
    assert names() == ()
    with pytest.raises(ConfigError, match="RANKWISE_START must be auto or fresh, got 'fork'"):
        names(RANKWISE_START="fork")


def test_nothing_is_left_of_a_server_that_cannot_load(tmp_path):
    """Its reason is told, and this process is no subreaper any more."""
    (tmp_path / "script.py").touch()
    target = Target(kind="script", name=str(tmp_path / "script.py"))
    server = client.ForkServer(target, ("no_such_module",), os.environ)
    pid = server._process.pid
    try:
        server.listen()
        assert "No module named 'no_such_module'" in server.reason
    finally:
        server.close()
    answer = ctypes.c_int(1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(answer), 0, 0, 0)
    assert answer.value == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
