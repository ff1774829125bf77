"""An S3-compatible server on loopback, for all that reads data."""

import http.client
import subprocess
import sys

import pytest

SERVER = """
import logging, sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # ends with the tests, however they end
server.stop()
"""


@pytest.fixture(scope="session")
def s3_keys():
    """What the server wants to be told; it believes everything."""
    return {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}


@pytest.fixture(scope="session")
def s3_port():
    """Port of the S3-compatible server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield int(server.stdout.readline())
    server.stdin.close()
    server.stdout.close()
    server.wait(30)


@pytest.fixture(scope="session")
def bucket(s3_port, s3_keys):
    """Name of a bucket, and a store that writes to it past the proxy."""
    from obstore.store import S3Store

    connection = http.client.HTTPConnection("127.0.0.1", s3_port, timeout=20)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    return S3Store("bucket", endpoint=f"http://127.0.0.1:{s3_port}", **s3_keys, client_options={"allow_http": True})
