"""Parse `--env`."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.errors import ConfigError

__all__ = ["parse_env"]


def parse_env(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `--env NAME=VALUE`.

    Raises:
        ConfigError: a pair without "=".
    """
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--env takes NAME=VALUE, got {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)
