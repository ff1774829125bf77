"""Arithmetic of time spans: sorted lists of disjoint half-open ``(start, end)`` in integer nanoseconds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Spans = list[tuple[int, int]]


def unite(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of any spans; drop empty ones and join adjacent ones."""
    merged: Spans = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the intersection of both."""
    found: Spans = []
    a = b = 0
    while a < len(left) and b < len(right):
        start, end = max(left[a][0], right[b][0]), min(left[a][1], right[b][1])
        if start < end:
            found.append((start, end))
        if left[a][1] < right[b][1]:
            a += 1
        else:
            b += 1
    return found


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the first without the second."""
    found: Spans = []
    place = 0
    for begin, end in left:
        start = begin
        while place < len(right) and right[place][1] <= start:
            place += 1
        at = place
        while at < len(right) and right[at][0] < end:
            if start < right[at][0]:
                found.append((start, right[at][0]))
            start = max(start, right[at][1])
            at += 1
        if start < end:
            found.append((start, end))
    return found


def clip(spans: Spans, start: int, end: int) -> Spans:
    """Return the part between two times."""
    if start >= end:
        return []
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, end, key=lambda span: span[0])
    return [(max(start, a), min(end, b)) for a, b in spans[first:last]]


def length(spans: Spans) -> int:
    """Return the sum of their lengths, in nanoseconds."""
    return sum(end - start for start, end in spans)
