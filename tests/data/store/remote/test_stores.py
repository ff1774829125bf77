"""Connections to stores: which kinds there are, what they share, and what is said when they cannot be had."""

import subprocess
import sys

import obstore
import pytest

from rankwise.data.store.remote import RemoteFiles, RemoteOptions, RemoteRange, TransferError, memory_store
from rankwise.data.store.remote.options import locate, open_store
from rankwise.errors import MissingExtraError
from rankwise.testing.faults import fork_while_held


def test_files_and_memory_are_stores_too(tmp_path):
    """The same calls read file:// and memory:// URLs."""
    (tmp_path / "a b#c").write_bytes(b"0123456789")
    obstore.put(memory_store("memory://kinds"), "a b#c", b"0123456789")
    files = RemoteFiles()
    for root in (f"file://{tmp_path}", "memory://kinds"):
        assert files.read_document(f"{root}/a b#c") == b"0123456789"
        assert bytes(files.read_tail(f"{root}/a b#c", 3).data) == b"789"
        assert bytes(files.fetch([RemoteRange(url=f"{root}/a b#c", offset=2, length=3)])[0]) == b"234"
        assert files.read_document(f"{root}/none") is None
        assert files.read_document(f"{root}/a b#c/below") is None
        assert files.list_prefix(root).objects == (f"{root}/a b#c",)
    files.close()


def test_a_file_that_was_replaced_is_refused(tmp_path):
    """Local files have versions as well."""
    url = f"file://{tmp_path}/x"
    (tmp_path / "x").write_bytes(b"old")
    with RemoteFiles() as files:
        _, etag = files.size(url)
        (tmp_path / "x").write_bytes(b"newer")
        [error] = files.fetch([RemoteRange(url=url, offset=0, length=3, etag=etag)])
    assert "replaced" in str(error)


def test_readers_with_the_same_options_share_their_connections():
    """One store for each bucket and set of options."""
    location = locate("s3://shared/x")
    options = [RemoteOptions(store={"region": region, "anonymous": True}) for region in ("a", "a", "b")]
    first, second, third = (open_store(location, each) for each in options)
    assert first is second
    assert first is not third
    assert open_store(locate("s3://other/x"), options[0]) is not first


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/x", {"region": "r", "anonymous": True}),
        ("gs://b/x", {"anonymous": True}),
        ("az://c/x", {"account_name": "me", "anonymous": True}),
        ("https://host/x", {}),
    ],
)
def test_every_kind_of_store_opens(url, options):
    """Buckets, containers and hosts, without a request."""
    assert open_store(locate(url), RemoteOptions(store=options)) is not None


def test_a_server_that_is_not_there_is_named():
    """Nobody listens on the port: the reason of the last attempt says so."""
    with (
        RemoteFiles(RemoteOptions(retries=1, backoff_s=0)) as files,
        pytest.raises(TransferError, match=r"given up after 2 attempts .*no connection \(Connection refused\)"),
    ):
        files.read_document("http://127.0.0.1:9/x")


def test_without_obstore_the_extra_is_named(monkeypatch):
    """The message is the command that mends it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankwise\[remote\]'"):
        RemoteFiles().read_document("memory://x/y")


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_process_is_told_instead_of_left_waiting():
    """The network threads stayed behind in the parent; a request would never be answered."""
    assert "fork" in python(
        """
import os
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import WorldError
files = RemoteFiles()
assert files.read_document("memory://a/b") is None
child = os.fork()
if child == 0:
    try:
        files.read_document("memory://a/b")
    except WorldError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""
    )


def test_importing_needs_no_obstore():
    """The room can be imported, and options made, where the extra is not installed."""
    said = python(
        """
import sys
sys.modules["obstore"] = None
from rankwise.data.store.remote import RemoteFiles, RemoteOptions
print(type(RemoteFiles(RemoteOptions())).__name__)
"""
    )
    assert said == "RemoteFiles\n"


def test_a_program_that_ends_does_not_wait_for_retries():
    """Reads that were begun and forgotten end with the main thread, not with their deadline."""
    said = python(
        """
from rankwise.data.store.remote import RemoteFiles, RemoteOptions, RemoteRange
files = RemoteFiles(RemoteOptions(backoff_s=600, max_backoff_s=600, retry_deadline_s=3600))
pending = files.start([RemoteRange(url="http://127.0.0.1:9/x", offset=0, length=4)])
while files.stats.backoff_s == 0:
    pass
print("waits for the next attempt")
"""
    )
    assert said == "waits for the next attempt\n"


def test_a_fork_in_the_middle_of_opening_a_store_is_told_as_well():
    """A thread of the parent held the lock of the stores: the child hears why it cannot read, and does not wait."""
    setup = """
        from rankwise.data.store.remote import options
        from rankwise.errors import WorldError
        options.load_obstore()
    """
    child = """
        try:
            options.load_obstore()
        except WorldError:
            os._exit(7)
    """
    assert fork_while_held(setup, lock="options._lock", child=child) == 7


def test_a_program_ends_that_opens_a_reader_after_its_main_thread():
    """A thread of the program goes on alone: nobody would end the threads of a new reader, so it reads nothing."""
    said = python(
        """
import threading
from rankwise.data.store.remote import RemoteFiles, RemoteRange, TransferError
RemoteFiles().read_document("memory://a/b")
def later():
    threading.main_thread().join()
    files = RemoteFiles()
    try:
        files.fetch([RemoteRange(url="memory://a/b")])
    except RuntimeError as error:
        print(error, flush=True)
    try:
        files.read_document("memory://a/b")
    except TransferError as error:
        print(error, flush=True)
threading.Thread(target=later).start()
"""
    )
    assert "after interpreter shutdown" in said
    assert "not read, because its reader was closed" in said
