"""A hundred rows on disk, and which of them are read."""

import threading

import pytest

from rankwise.data.rows.loader import requests
from rankwise.testing.stores.hundred_rows import write_hundred


@pytest.fixture(scope="session")
def hundred(tmp_path_factory):
    """Where they lie."""
    return write_hundred(tmp_path_factory.mktemp("hundred") / "X")


class Noting(list):
    """Requests that were read, by `readers`, which wait for a gate."""

    def __init__(self):
        super().__init__()
        self.readers, self.gate, self.waits = [], threading.Event(), threading.Event()
        self.gate.set()


@pytest.fixture
def reads(monkeypatch):
    """The rows of each request that was read."""
    found = Noting()

    class Noted(requests.StoredRows):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.readers.append(self)

        def read(self, rows, lease):
            found.append(rows.tolist())
            if not found.gate.is_set():
                found.waits.set()
                assert found.gate.wait(120)
            return super().read(rows, lease)

    monkeypatch.setattr("rankwise.data.rows.loader.datasets.StoredRows", Noted)
    return found
