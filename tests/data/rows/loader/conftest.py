"""A hundred rows on disk, and which of them are read."""

import pytest

from rankwise.data.rows.loader import stored
from rankwise.testing.hundred_rows import write_hundred


@pytest.fixture(scope="session")
def hundred(tmp_path_factory):
    """Where they lie."""
    return write_hundred(tmp_path_factory.mktemp("hundred") / "X")


@pytest.fixture
def reads(monkeypatch):
    """The rows of each request that was read."""
    found = []

    class Noted(stored.StoredRows):
        def read(self, rows):
            found.append(rows.tolist())
            return super().read(rows)

    monkeypatch.setattr("rankwise.data.rows.loader.held.StoredRows", Noted)
    return found
