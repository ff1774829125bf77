"""What was asked of object stores, and what it cost."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["RemoteCounters", "RemoteStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStats:
    """What a reader has asked of object stores since it was opened.

    Attributes:
        requests: requests sent, each attempt counted.
        retries: attempts after a first one.
        failures: requests that were given up (an object that is not there is an answer, not a failure).
        wanted_bytes: bytes that were asked for and delivered.
        fetched_bytes: bytes that came over the network for them; more than `wanted_bytes` by the gaps between ranges.
        request_s: seconds spent in requests, summed over those that ran at the same time.
        backoff_s: seconds spent waiting before retries, summed likewise.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    wanted_bytes: int = 0
    fetched_bytes: int = 0
    request_s: float = 0.0
    backoff_s: float = 0.0

    def __add__(self, other: RemoteStats) -> RemoteStats:
        return RemoteStats(
            requests=self.requests + other.requests,
            retries=self.retries + other.retries,
            failures=self.failures + other.failures,
            wanted_bytes=self.wanted_bytes + other.wanted_bytes,
            fetched_bytes=self.fetched_bytes + other.fetched_bytes,
            request_s=self.request_s + other.request_s,
            backoff_s=self.backoff_s + other.backoff_s,
        )


class RemoteCounters:
    """A `RemoteStats` that grows; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = RemoteStats()

    def add(self, stats: RemoteStats) -> None:
        """Add to the counts."""
        with self._lock:
            self._stats = self._stats + stats

    @property
    def stats(self) -> RemoteStats:
        """The counts so far."""
        return self._stats
