"""One report of a share out of the reports of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankwise.data.contract import ReadReport
from rankwise.data.store.boxes.request import BoxReport
from rankwise.errors import SampleError

__all__ = ["sum_reports"]


def sum_reports(num_samples: int, errors: Mapping[int, SampleError], reports: Sequence[BoxReport]) -> ReadReport:
    """Return what `Source.read` reports.

    Args:
        num_samples: samples of the share.
        errors: what went wrong, by place in the share; a sample that stands at several places is reported once.
        reports: of the fields, one each.
    """
    valid = np.ones(num_samples, dtype=np.bool_)
    valid[list(errors)] = False
    first: dict[int, SampleError] = {}
    for _, error in sorted(errors.items()):
        first.setdefault(error.sample, error)
    return ReadReport(
        valid=valid,
        fill_chunks=sum(report.fill_chunks for report in reports),
        fast_chunks=sum(report.fast_chunks for report in reports),
        slow_chunks=sum(report.slow_chunks for report in reports),
        errors=tuple(first.values()),
    )
