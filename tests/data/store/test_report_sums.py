"""One report out of several."""

import numpy as np

from rankwise.data.store import BoxReport, sum_reports
from rankwise.errors import SampleError


def report(**counts):
    none = np.zeros(4, dtype=np.bool_)
    return BoxReport(valid=~none, missing_boxes=none, fill_boxes=none, lost_boxes=none, **counts)


def test_chunks_are_added_and_samples_named_once():
    """Chunks of all fields count; a sample at two places is invalid at both, its first error stands for it."""
    errors = {number: SampleError(f"place {number}", sample=7, place="x") for number in (3, 1)}
    found = sum_reports(4, errors, [report(fill_chunks=1, fast_chunks=2), report(fast_chunks=3, slow_chunks=5)])
    assert (found.fill_chunks, found.fast_chunks, found.slow_chunks) == (1, 5, 5)
    assert found.valid.tolist() == [True, False, True, False]
    assert [str(error) for error in found.errors] == ["place 1"]


def test_nothing_went_wrong():
    """Without errors and reports every sample is valid."""
    found = sum_reports(2, {}, [])
    assert (found.valid.tolist(), found.errors, found.fast_chunks) == ([True, True], (), 0)
