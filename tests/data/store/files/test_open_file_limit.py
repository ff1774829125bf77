"""Too few files that can be open are said before anything is read."""

import logging

from rankwise.data.store.files.handles import system_file_limit, warn_few_handles


def said(caplog, **numbers):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rankwise"):
        warn_few_handles(**{"wanted": 10, "capacity": 20, "local_ranks": 1, "system_limit": None, **numbers})
    return [record.getMessage() for record in caplog.records]


def test_what_fits_is_not_mentioned(caplog):
    """Files enough for a rank, and for all ranks together."""
    assert said(caplog) == []
    assert said(caplog, local_ranks=4, system_limit=40) == []


def test_more_files_than_handles(caplog):
    """The message has both numbers and the limit that would do: half of what is beyond 64 is for the reader."""
    (text,) = said(caplog, wanted=21)
    assert "up to 21 files, its reader keeps 20 open" in text
    assert "ulimit -n 106" in text
    (text,) = said(caplog, wanted=5000, capacity=4096)
    assert "ulimit" not in text  # no reader keeps more


def test_all_ranks_together(caplog):
    """Ranks times files against what the machine allows; a reader opens no more than its handles."""
    (text,) = said(caplog, local_ranks=4, system_limit=39)
    assert "the 4 ranks of this machine may keep 40 files open together, the system allows 39" in text
    assert len(said(caplog, wanted=100, capacity=10, local_ranks=4, system_limit=40)) == 1


def test_the_systems_limit(tmp_path):
    """Read where the system says it; unknown elsewhere."""
    (tmp_path / "file-max").write_text("1234\n")
    assert system_file_limit(tmp_path / "file-max") == 1234
    assert system_file_limit(tmp_path / "none") is None
