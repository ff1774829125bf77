"""A log gets a line now and then."""

from rankwise.data.rows.collection.progress import Lines


def test_a_line_every_ten_seconds_and_at_the_end(capsys):
    """Rows, rate and time left; not more often than every ten seconds, but always at the end, once."""
    now_s = 0.0
    lines = Lines(1000, clock=lambda: now_s)
    for rows in range(0, 501, 100):
        lines.show("reading", rows)
        now_s += 4.0
    lines.show("reading", 1000)
    lines.show("reading", 1000)
    assert capsys.readouterr().err.splitlines() == [
        "reading 300/1,000 rows, 25 rows/s, 0:00:28 left",
        "reading 1,000/1,000 rows, 42 rows/s, 0:00:00 left",
    ]
