"""`--env`."""

import pytest

from rankwise.cli.start import parse_env
from rankwise.errors import ConfigError


def test_variables():
    """The value may hold equals signs, and be empty; a pair without one is refused."""
    assert parse_env(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_env(["A"])
