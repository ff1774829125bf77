"""The goals, and whether a run met them."""

from __future__ import annotations

from _crops.statistics_of import Spread
from _crops.targets import Verdict

from _rows.comparing import Comparison

_LESS_CPU = {("annbatch", 32): 1.6, ("annbatch", 512): 1.15, ("aligned", 32): 2.5}  # (layout, run); than annbatch
_SINGLE_ROWS, _DENSE_STORE = 4.0, 1.5
NOT_MEASURED = Verdict(
    goal="an epoch beside a step that takes as long as a batch <= 1.1 times the longer of the two",
    seen="not measured",
    met=None,
    note="requests are read one by one here, without a loader",
)


def of_comparison(found: Comparison, *, torch: bool, full: bool) -> list[Verdict]:
    """Goals of one layout and one length of runs.

    Args:
        found: the comparison.
        torch: whether annbatch had torch for its dense rows.
        full: whether the stores have the size that the goals are about; nothing is met or missed on others.
    """
    small = "" if full else "the goals are about the full stores"
    rows: list[tuple[str, Spread | None, float | None, str]] = [
        ("less CPU than annbatch", found.cpu_ratio("annbatch", "ours"), _less_cpu(found.layout, found.task.run), small)
    ]
    if found.layout == "annbatch" and found.task.run == 512:
        note = small or ("" if torch else "annbatch had no torch: its dense rows are SciPy's")
        rows += [
            ("share of the floor, CPU", found.cpu_ratio("floor", "ours"), 0.55, small),
            ("dense rows, less CPU than annbatch", found.cpu_ratio("annbatch-dense", "ours-dense"), 5.0, note),
            ("chosen genes dense, less CPU than all sparse", found.cpu_ratio("ours", "ours-genes"), 1.0, small),
        ]
    return [
        _at_least(f"{found.title}: {goal}", seen, bound, note) for goal, seen, bound, note in rows if seen and bound
    ]


def _less_cpu(layout: str, run: int) -> float | None:
    if run == 1:
        return _SINGLE_ROWS
    return _DENSE_STORE if layout == "dense" else _LESS_CPU.get((layout, run))


def _at_least(goal: str, seen: Spread, bound: float, note: str) -> Verdict:
    met = None if note else seen.median >= bound
    return Verdict(goal=f"{goal} >= {bound:g}", seen=str(seen), met=met, note=note)
