"""A launch is validated before anything starts."""

import pytest

from rankwise.errors import ConfigError
from rankwise.launch import Job, Target

TARGET = Target(kind="module", name="m")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_ranks": 0}, "num_ranks"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"hang_timeout_s": -1.0}, "hang_timeout_s"),
        ({"hang_timeout_s": float("nan")}, "hang_timeout_s"),
        ({"shutdown_timeout_s": -1.0}, "shutdown_timeout_s"),
        ({"resume": "perhaps"}, "auto, must or never"),
        ({"fresh": True, "resume": "must"}, "give one of them"),
        ({"master_port": 0}, "master_port"),
        ({"timeout_s": "3"}, "timeout_s must be at least 0 seconds, got '3'"),
        ({"env": {"A B": "1"}}, "not a valid name of an environment variable"),
        ({"env": {"A": 1}}, "the value of A must be text without null characters, got 1"),
        ({"env": {"A": "a\0b"}}, "the value of A must be text"),
    ],
)
def test_what_cannot_work_is_refused(fields, words):
    """The message names the field and what came."""
    with pytest.raises(ConfigError, match=words):
        Job(target=TARGET, **fields)


def test_where_logs_go(tmp_path):
    """A log folder wins over the run directory; without either there are none."""
    assert Job(target=TARGET).logs is None
    assert Job(target=TARGET, run_dir=tmp_path).logs == tmp_path / "logs"
    assert Job(target=TARGET, run_dir=tmp_path, log_dir=tmp_path / "l").logs == tmp_path / "l"
