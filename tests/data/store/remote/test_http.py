"""Plain web servers: with ranges, without, with and without versions."""

import hashlib
import http.server
import pickle
import re
import threading
from urllib.parse import unquote

import pytest

from rankwise.data.store.remote import ObjectChangedError, RemoteFiles, RemoteOptions, RemoteRange, TransferError


class Server(http.server.ThreadingHTTPServer):
    """Serves a dictionary. Ranges and entity tags can be switched off."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.objects = {}
        self.changed = "Mon, 02 Jan 2023 00:00:00 GMT"
        self.ranges = self.tags = True
        self.weak = False
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Nothing."""

    def do_GET(self):
        server, path = self.server, unquote(self.path.lstrip("/"))
        server.asked.append((self.command, path, self.headers.get("range")))
        if path not in server.objects:
            self.reply(404, b"", {})
            return
        body = server.objects[path]
        headers = {"last-modified": server.changed}
        if server.tags:
            headers["etag"] = ("W/" if server.weak else "") + f'"{hashlib.sha256(body).hexdigest()[:8]}"'
            # as servers do: a weak tag matches no strong comparison
            if self.headers.get("if-match", headers["etag"]) != headers["etag"] or server.weak > (
                "if-match" not in self.headers
            ):
                self.reply(412, b"", headers)
                return
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range", ""))
        if not wanted or not server.ranges:
            self.reply(200, body, headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(body) - int(last))
        stop = min(int(last) + 1, len(body)) if first and last else len(body)
        if start >= len(body):
            self.reply(416, b"", headers)
            return
        self.reply(206, body[start:stop], {**headers, "content-range": f"bytes {start}-{stop - 1}/{len(body)}"})

    do_HEAD = do_GET  # noqa: N815

    def do_PROPFIND(self):
        self.reply(405, b"", {})

    def reply(self, status, body, headers):
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.objects = {"a b/x": b"0123456789", "a b/empty": b""}
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def files():
    with RemoteFiles(RemoteOptions(backoff_s=0.001, retries=2)) as files:
        yield files


def test_ranges_tails_and_documents(server, files):
    """Everything that buckets do; names in the URL are percent-encoded, or stand as they are."""
    for url in (f"{server.url}/a%20b/x", f"{server.url}/a b/x"):
        assert files.read_document(url) == b"0123456789"
        assert bytes(files.read_head(url, 3).data) == b"012"
        assert bytes(files.read_tail(url, 3).data) == b"789"
        assert [bytes(p) for p in files.fetch([RemoteRange(url=url, offset=n, length=2) for n in (5, 1)])] == [
            b"56",
            b"12",
        ]
    assert files.read_document(f"{server.url}/a b/none") is None
    assert files.read_tail(f"{server.url}/a b/none", 3) is None
    assert files.read_tail(f"{server.url}/a b/empty", 3).size == 0
    assert files.size(f"{server.url}/a b/x")[0] == 10


@pytest.mark.parametrize("kind", ["strong tags", "weak tags", "no tags"])
def test_replaced_objects_are_noticed_with_any_kind_of_version(server, files, kind):
    """By the tag, also a weak one, which servers refuse to compare; without tags by size and time of change."""
    server.tags, server.weak = kind != "no tags", kind == "weak tags"
    url = f"{server.url}/a b/x"
    _, _, etag = files.read_tail(url, 2)
    same = RemoteRange(url=url, offset=0, length=2, etag=etag)
    assert bytes(files.fetch([same])[0]) == b"01"
    server.objects["a b/x"] = b"9876543210"
    server.changed = "Mon, 02 Jan 2023 00:00:01 GMT"
    [error] = files.fetch([same])
    assert isinstance(error, ObjectChangedError)
    assert "replaced" in str(error)
    assert isinstance(pickle.loads(pickle.dumps(error)), ObjectChangedError)


def test_a_server_without_ranges_says_so(server, files):
    """Whole objects can still be read; a part of one is an error that names the mend, at once."""
    server.ranges = False
    url = f"{server.url}/a b/x"
    assert bytes(files.fetch([RemoteRange(url=url)])[0]) == b"0123456789"
    server.asked.clear()
    [error] = files.fetch([RemoteRange(url=url, offset=0, length=2)])
    assert isinstance(error, TransferError)
    assert "the server sends whole objects only" in str(error)
    assert len(server.asked) == 1
    for read in (files.read_head, files.read_tail):
        with pytest.raises(TransferError, match="use a server that supports range requests"):
            read(url, 2)


def test_a_server_without_listings_says_so(server, files):
    """Web servers cannot be searched for arrays."""
    with pytest.raises(TransferError, match="name the arrays one by one"):
        files.list_prefix(f"{server.url}/a%20b")
