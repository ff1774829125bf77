"""Stretches of an array along one axis, and the chunks of one of them by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store import ArrayMeta, BoxError, BoxReader, BoxReport, BoxRequest

__all__ = ["read_boxes", "read_chunks"]


def read_boxes(array: ArrayMeta, starts: IntArray, extent: int, reader: BoxReader) -> tuple[IntArray, BoxReport]:
    """Return stretches of equal length, int64[n, extent], and how reading them went; kept in no cache.

    Args:
        array: one axis, whole numbers.
        starts: int64[n], where they begin.
        extent: numbers of each.
        reader: reads them.

    Raises:
        DataError: there is trouble with the storage; damage is reported.
    """
    request = BoxRequest(
        arrays=(array,),
        which=np.zeros(len(starts), dtype=np.int64),
        starts=starts[:, None],
        shape=(extent,),
        dtype=np.dtype(np.int64),
        keep=False,
    )
    values: IntArray = np.empty((len(starts), extent), dtype=np.int64)
    (report,) = reader.read([(reader.plan(request), values)])
    for error in report.errors:
        if not error.damage:
            raise error.error
    return values, report


def read_chunks(array: ArrayMeta, page: IntArray, first: int, chunk: int, reader: BoxReader) -> dict[int, BoxError]:
    """Read a stretch again, each chunk by itself; return why some cannot be read, by their numbers.

    Args:
        array: one axis, whole numbers.
        page: int64[n], filled in.
        first: where it begins, at the edge of a chunk.
        chunk: numbers of a chunk.
        reader: reads them.

    Raises:
        DataError: there is trouble with the storage.
    """
    num_whole = len(page) // chunk
    rest = len(page) - num_whole * chunk
    errors: dict[int, BoxError] = {}
    for begin, count, extent in ((0, num_whole, chunk), (num_whole * chunk, min(rest, 1), rest)):
        if not count:
            continue
        values, report = read_boxes(array, first + begin + np.arange(count) * extent, extent, reader)
        page[begin : begin + count * extent] = values.reshape(-1)
        for error in report.errors:
            errors[first // chunk + begin // chunk + error.box] = replace(error, box=0)
    return errors
