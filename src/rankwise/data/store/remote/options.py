"""`RemoteOptions`: how to talk to object stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.errors import ConfigError

__all__ = ["RemoteOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How one reader of one rank talks to object stores.

    Attributes:
        concurrency: requests in flight at once.
        timeout_s: an attempt is given up when no byte arrives for so long.
        connect_timeout_s: an attempt is given up when no connection is made within this time.
        retries: further attempts after the first one failed for a passing reason.
        retry_deadline_s: no further attempt begins so long after the first; no single attempt takes longer either.
        backoff_s: longest wait before the first retry; it doubles with each one. The wait is drawn from the upper half
            of this time, so that ranks which failed together do not come back together.
        max_backoff_s: longest wait before any retry.
        coalesce_gap_bytes: two ranges of an object become one request when at most so many bytes lie between them.
        max_read_bytes: a request that joins ranges does not grow beyond this.
        store: what the store itself wants, passed on to obstore: ``endpoint``, ``region``, ``anonymous``,
            ``access_key_id``, ``account_name``, ``credential_provider``, ``allow_http``, ``proxy_url``, ... A key that
            is a scheme ("s3", "gs", "az", "http") holds a mapping of options for URLs of that scheme only. Never shown.

    Raises:
        ConfigError: a number is out of range, or `store` is no mapping of names.
    """

    concurrency: int = 32
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    retries: int = 8
    retry_deadline_s: float = 120.0
    backoff_s: float = 0.1
    max_backoff_s: float = 10.0
    coalesce_gap_bytes: int = 256 * 2**10
    max_read_bytes: int = 8 * 2**20
    # keys and tokens stand in it: they must not reach a log through a repr
    store: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_read_bytes"):
            self._refuse(name, at_least=1)
        for name in ("retries", "coalesce_gap_bytes", "backoff_s", "max_backoff_s"):
            self._refuse(name, at_least=0)
        for name in ("timeout_s", "connect_timeout_s", "retry_deadline_s"):
            self._refuse(name, at_least=0.001)
        if not isinstance(self.store, Mapping) or not all(isinstance(name, str) for name in self.store):
            raise ConfigError(
                'RemoteOptions.store wants a mapping from names to values, such as {"region": "eu-west-1"}'
            )

    def _refuse(self, name: str, *, at_least: float) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= at_least:
            raise ConfigError(f"RemoteOptions.{name} wants a number >= {at_least}; got {value!r}")
        if isinstance(at_least, int) and not name.endswith("_s") and not isinstance(value, int):
            raise ConfigError(f"RemoteOptions.{name} wants a whole number; got {value!r}")
