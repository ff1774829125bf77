"""`read_fields`: the rows of several fields, by one reader at once."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.data.contract import NDArray
from rankwise.data.feed.memory import MemoryPool
from rankwise.data.rows.fields.row_field import Finished, RowField
from rankwise.data.rows.matrices import MatrixPlan
from rankwise.data.store import BoxReader

__all__ = ["read_fields"]


def read_fields(
    fields: Mapping[str, RowField],
    plans: Mapping[str, MatrixPlan],
    arrays: Mapping[str, tuple[NDArray, ...]],
    reader: BoxReader,
    memory: MemoryPool,
) -> dict[str, Finished]:
    """Read rows into the arrays of a batch; what goes wrong with a row is told, not raised.

    Args:
        fields: by name.
        plans: how the rows of each are read.
        arrays: where those of each go.
        reader: made the plans.
        memory: for what lies in between; used by nobody else meanwhile.
    """
    begun = {name: field.begin(plans[name], arrays[name], reader, memory) for name, field in fields.items()}
    jobs = {name: list(one.jobs) for name, one in begun.items()}
    reports = iter(reader.read([job for of_field in jobs.values() for job in of_field]) if any(jobs.values()) else ())
    return {name: one.finish(tuple(next(reports) for _ in jobs[name])) for name, one in begun.items()}
