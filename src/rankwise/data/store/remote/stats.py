"""What was asked of object stores, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.data.store.counting import added

__all__ = ["RemoteStats"]


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
        return added(self, other)
