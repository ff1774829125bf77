"""A hundred rows on disk, and which of them are read."""

import pytest

from rankwise.data.rows.loader import stored
from rankwise.testing.hundred_rows import write_hundred


@pytest.fixture(scope="session")
def hundred(tmp_path_factory):
    """Where they lie."""
    return write_hundred(tmp_path_factory.mktemp("hundred") / "X")


class Noting(list):
    """A list with an attribute."""

    def __init__(self):
        super().__init__()
        self.readers = []


@pytest.fixture
def reads(monkeypatch):
    """The rows of each request that was read; `readers` are what read them."""
    found = Noting()

    class Noted(stored.StoredRows):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.readers.append(self)

        def read(self, rows, lease):
            found.append(rows.tolist())
            return super().read(rows, lease)

    monkeypatch.setattr("rankwise.data.rows.loader.held.StoredRows", Noted)
    return found
