"""Too few files that can be open are said before anything is read."""

import logging

import pytest

from rankwise.data.store.files import handles


@pytest.fixture
def said(caplog, monkeypatch, tmp_path):
    """Return the warnings for some numbers; the system may say its limit in a file."""
    monkeypatch.setattr(handles, "_FILE_MAX", tmp_path / "file-max")

    def found(*, system_limit=None, **numbers):
        caplog.clear()
        if system_limit is not None:
            (tmp_path / "file-max").write_text(f"{system_limit}\n")
        with caplog.at_level(logging.WARNING, "rankwise"):
            handles.warn_few_handles(**{"wanted": 10, "capacity": 20, "local_ranks": 1, **numbers})
        return [record.getMessage() for record in caplog.records]

    return found


def test_what_fits_is_not_mentioned(said):
    """Files enough for a rank, and for all ranks together."""
    assert said() == []
    assert said(local_ranks=4, system_limit=40) == []


def test_more_files_than_handles(said):
    """The message has both numbers and the limit that would do: half of what is beyond 64 is for the reader."""
    (text,) = said(wanted=21)
    assert "up to 21 files, its reader keeps 20 open" in text
    assert "ulimit -n 106" in text
    (text,) = said(wanted=5000, capacity=4096)
    assert "ulimit" not in text  # no reader keeps more


def test_all_ranks_together(said):
    """Ranks times files against what the machine allows; a reader opens no more than its handles."""
    (text,) = said(local_ranks=4, system_limit=39)
    assert "the 4 ranks of this machine may keep 40 files open together, the system allows 39" in text
    assert len(said(wanted=100, capacity=10, local_ranks=4, system_limit=40)) == 1
