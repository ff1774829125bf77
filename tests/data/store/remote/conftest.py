"""A real S3-compatible server on loopback, and a proxy before it that does what networks do."""

import contextlib
import http.client
import http.server
import socket
import struct
import threading
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from rankwise.data.store.remote import RemoteFiles, RemoteOptions


@dataclass
class Request:
    """What the proxy was asked."""

    method: str
    path: str
    headers: dict


@dataclass
class Faults:
    """What goes wrong: for the coming requests, in order; "" is nothing. Those on `paths` only, if given."""

    coming: deque = field(default_factory=deque)
    paths: str = ""

    def of(self, path):
        if self.paths not in path or not self.coming:
            return ""
        return self.coming.popleft()


class Proxy(http.server.ThreadingHTTPServer):
    """Hands requests on, and spoils the answers that it is told to spoil."""

    daemon_threads = True

    def __init__(self, upstream_port):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream_port = upstream_port
        self.faults = Faults()
        self.requests = []
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.in_flight = self.most_in_flight = 0
        self.gate = None

    def handle_error(self, request, client_address):
        """Clients that give up are the point of these tests."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def spoil(self, *faults, paths=""):
        """The next requests (of paths that contain `paths`) go wrong like this, and those before are forgotten."""
        self.faults = Faults(deque(faults), paths)
        self.requests.clear()

    def asked(self, method="GET"):
        """(path, Range header) of the requests so far."""
        return [(r.path, r.headers.get("range")) for r in self.requests if r.method == method]

    def count(self):
        return Counter(r.method for r in self.requests)

    @contextlib.contextmanager
    def flight(self):
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.gate is not None:
                self.gate.wait(60)
            yield
        finally:
            with self.lock:
                self.in_flight -= 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Nothing."""

    def do_GET(self):
        server = self.server
        with server.lock:
            server.requests.append(
                Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            )
            fault = server.faults.of(self.path)
        with server.flight():
            upstream = () if fault == "stall" or fault.isdigit() else self.upstream()
        # landed: whoever has the answer may ask again before this thread goes on
        if fault == "stall":
            server.ended.wait(60)
            self.close_connection = True
        elif fault.isdigit():
            self.refuse(int(fault))
        else:
            self.spoil(*upstream, fault)

    do_HEAD = do_PROPFIND = do_GET  # noqa: N815

    def upstream(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=120)
        # a signature is for the host that was asked
        connection.request(self.command, self.path, headers=dict(self.headers.items()))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), body

    def refuse(self, status):
        body = b"<Error><Code>SlowDown</Code><Message>please</Message></Error>" if status == 503 else b"<Error/>"
        self.answer(status, [("content-type", "application/xml")], b"" if self.command == "HEAD" else body)

    def answer(self, status, headers, body, announced=None):
        self.send_response_only(status)
        length = {n.lower(): v for n, v in headers}.get("content-length", len(body))
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("content-length", str(length if announced is None else announced))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def spoil(self, status, headers, body, fault):
        half = len(body) // 2
        if fault in ("reset", "cut", "drip"):
            self.answer(status, headers, body[:half], announced=len(body))
            self.close_connection = True
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif fault == "drip":
                self.server.ended.wait(60)
        elif fault == "short":
            self.answer(status, headers, body[:half], announced=half)
        elif fault == "flip":
            self.answer(status, headers, bytes(byte ^ 255 for byte in body))
        elif fault == "no ranges":
            self.answer(200, [h for h in headers if h[0].lower() != "content-range"], body)
        else:
            self.answer(status, headers, body)


@pytest.fixture
def proxy_to():
    """Start proxies before ports."""
    proxies = []

    def start(port):
        proxy = Proxy(port)
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        proxies.append(proxy)
        return proxy

    yield start
    for proxy in proxies:
        proxy.ended.set()
        proxy.shutdown()
        proxy.server_close()


@pytest.fixture
def proxy(proxy_to, s3_port):
    """A proxy before the S3-compatible server."""
    return proxy_to(s3_port)


@pytest.fixture
def files_at(s3_keys):
    """Make `RemoteFiles` for an S3 endpoint, with short waits."""
    made = []

    def make(endpoint, **options):
        settings = {"timeout_s": 120.0, "backoff_s": 0.001, "max_backoff_s": 0.01, **options}
        store = {**s3_keys, "endpoint": endpoint, **settings.pop("store", {})}
        made.append(RemoteFiles(RemoteOptions(**settings, store=store)))
        return made[-1]

    yield make
    for files in made:
        files.close()
