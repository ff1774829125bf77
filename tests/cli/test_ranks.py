"""`--env`."""

import pytest

from rankwise.cli import ranks
from rankwise.errors import ConfigError


def test_variables():
    """The value may hold equals signs, and be empty; a pair without one is refused."""
    assert ranks.parse_env(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        ranks.parse_env(["A"])
