"""What all tests start from."""

import ctypes
import gc
import http.client
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

from rankwise.testing.held_ports import release_ports
from rankwise.testing.new_threads import mark_threads

S3_SERVER = """
import logging, sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # ends with the tests, however they end
server.stop()
"""

# Threads of OpenMP that wait for work burn a core each, which on a busy machine the one they wait for would need: a fit
# of six small steps took fifty seconds of CPU, and takes four. Their number stays, and with it every sum.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Workers that fork servers of tests start have it, as those of a script have what the script imports.
multiprocessing.set_forkserver_preload(["torch"])

HERE = Path(__file__).parent
# Files that take half a minute and more, longest first; a name that is gone does no harm.
LONGEST = [
    "test_docs.py", "main_job/test_restarts.py", "data/rows/moving/test_pages.py", "slurm/test_scripts.py",
    "slurm/test_ends_from_outside.py", "test_migration.py", "launch/elastic/test_deaths.py", "test_example_cells.py",
    "test_examples.py", "test_example_tokens.py", "data/loops/test_own_launcher.py", "data/loops/test_loops.py",
    "diagnose/profile/test_runs.py", "test_example_volumes.py", "diagnose/test_stages.py", "launch/test_hang.py",
    "world/test_bind.py", "diagnose/test_verify.py", "slurm/test_watch.py", "launch/elastic/test_standstill.py",
    "launch/elastic/test_network_training.py", "launch/test_notebooks.py", "data/feed/workers/test_forkserver.py",
    "test_installation.py", "main_job/test_crops.py", "main_job/test_same_work.py", "checkpoint/test_interruption.py",
    "tracking/test_services.py", "diagnose/doctor/test_network.py", "data/rows/collection/test_ranks.py",
    "data/crops/stitching/test_stitcher.py", "test_broken.py", "launch/test_decorator.py",
    "diagnose/profile/test_scaling.py", "data/rows/test_memory_script.py", "data/loops/test_in_dataloader.py",
    "launch/test_calls.py", "world/test_mpirun.py", "data/store/test_reader.py", "test_gpu_files.py",
    "diagnose/doctor/test_doctor.py", "main_job/test_chaos.py", "slurm/test_tasks.py",
    "data/store/test_reader_fuzz.py", "data/rows/ordered/test_jax.py", "data/rows/fields/test_densify.py",
    "testing/test_ranks.py", "data/rows/collection/test_memory.py",
]  # fmt: skip

# A busy machine may take a second for what takes a millisecond: no property depends on the clock.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


def pytest_configure():
    """Give signals their usual meaning: a shell that runs us in the background, or nohup, has switched some off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest, then those of many tests: no worker of pytest-xdist waits at the end."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    first = {name: -1_000_000 + place for place, name in enumerate(LONGEST)}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: first.get(item.path.relative_to(HERE).as_posix(), -sizes[item.path]))


def pytest_collection_finish():
    """What all files have imported lives to the end: no later collection, of which tests ask many, walks it again."""
    for name in ("sklearn", "sklearn.datasets"):  # what waits there
        getattr(sys.modules.get(name), "__all__", None)
    if "torch" in sys.modules:  # what quick_imports.py has left out of it
        importlib.import_module("torch._meta_registrations")
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "quick_imports"]
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _others_have_threads_too():
    """What a test finds with `threads_since` was started in it."""
    mark_threads()


@pytest.fixture(autouse=True)
def _ports_are_given_back():
    """Those that a test held for its ranks."""
    yield
    release_ports()


@pytest.fixture(scope="session")
def run_python():
    """Run Python with arguments in a folder, as a user of an example does; return what it said. It has to end well."""

    def run(folder, *arguments, **variables):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def saved_weights():
    """Read all weights of a model that a `Checkpointer` has saved, as one flat tensor."""
    import torch

    def leaves(tree):
        if isinstance(tree, torch.Tensor):
            return [tree]
        return [leaf for value in tree.values() for leaf in leaves(value)] if isinstance(tree, dict) else []

    return lambda folder: torch.cat([tensor.flatten() for tensor in leaves(torch.load(folder / "model.pt"))])


@pytest.fixture(scope="session")
def without_privileges():
    """Let modes of files count for root, too: inside ``with``, this thread lets go of the capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)

    @contextmanager
    def let_go():
        full = (ctypes.c_uint32 * 6)()
        assert libc.capget(header, full) == 0
        less = (ctypes.c_uint32 * 6)(*full)
        less[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of the effective ones
        assert libc.capset(header, less) == 0
        try:
            yield
        finally:
            assert libc.capset(header, full) == 0

    return let_go


@pytest.fixture(scope="session")
def s3_keys():
    """What the server wants to be told; it believes everything."""
    return {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}


@pytest.fixture(scope="session")
def s3_port():
    """Port of the S3-compatible server."""
    server = subprocess.Popen(
        [sys.executable, "-c", S3_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield int(server.stdout.readline())
    server.stdin.close()
    server.stdout.close()
    server.wait(120)


@pytest.fixture(scope="session")
def bucket(s3_port, s3_keys):
    """A store of the bucket "bucket" of an S3-compatible server on loopback, past any proxy."""
    from obstore.store import S3Store

    connection = http.client.HTTPConnection("127.0.0.1", s3_port, timeout=120)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    return S3Store("bucket", endpoint=f"http://127.0.0.1:{s3_port}", **s3_keys, client_options={"allow_http": True})


@pytest.fixture
def left_alive():
    """A function that calls another one twice, the second time without the cyclic garbage collector.

    It returns what is then alive of the weak references that the other one returns, None for each that is not.
    """

    def call(make):
        list(make())  # the first call imports, and frames of imports end up in cycles
        gc.collect()
        gc.disable()
        try:
            references = list(make())
            return [reference() for reference in references]
        finally:
            gc.enable()

    return call
