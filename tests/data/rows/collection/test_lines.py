"""A log gets a line now and then."""

from rankwise.data.rows.collection.progress import Progress, watched_progress


def test_a_line_every_ten_seconds_and_at_the_end(capsys):
    """Rows, rate and time left; not more often than every ten seconds, but always at the end, once."""
    now_s = 0.0
    lines = Progress(1000, enabled=True, clock=lambda: now_s)
    for rows in range(0, 501, 100):
        lines.show("spilled", rows)
        now_s += 4.0
    lines.show("spilled", 1000)
    lines.show("spilled", 1000)
    assert capsys.readouterr().err.splitlines() == [
        "reading 300/1,000 rows, 25 rows/s, 0:00:28 left",
        "reading 1,000/1,000 rows, 42 rows/s, 0:00:00 left",
    ]


def test_without_a_stderr_nothing_is_shown(monkeypatch, tmp_path):
    """Python has no sys.stderr in a process started with `2>&-`; writing goes on, even if progress is wished."""
    monkeypatch.setattr("sys.stderr", None)
    for enabled in (None, True):
        with Progress(10, enabled=enabled), watched_progress(tmp_path, enabled=enabled):
            pass
