"""Compiled: bytes to memory past the caches.

A store that goes through the caches reads the line first that it then overwrites: twice the traffic, for outputs that
are larger than caches. This module imports numba: import it late.
"""

from __future__ import annotations

from rankwise.data.store.decode.machine import external, inlined, stream64, types
from rankwise.data.store.decode.symbols import PREFIX

__all__ = ["memcpy", "stream_bytes"]

_long = types.int64
memcpy = external(f"{PREFIX}memcpy", _long, _long, _long, _long)


@inlined
def stream_bytes(target: int, source: int, num_bytes: int) -> int:
    """Copy bytes, whole lines of the target past the caches; returns 0."""
    head = min(-target & 63, num_bytes)
    memcpy(target, source, head)
    target, source, rest = target + head, source + head, num_bytes - head
    lines = rest >> 6
    for line in range(lines):
        stream64(target + 64 * line, source + 64 * line)
    memcpy(target + 64 * lines, source + 64 * lines, rest & 63)
    return 0
