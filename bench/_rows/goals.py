"""The goals, and whether a run met them."""

from __future__ import annotations

from _common.spreads import Spread
from _common.verdicts import Verdict, at_least

from _rows.comparison import Comparison
from _rows.overlap import EARLY_S, Overlap
from _rows.readers import KINDS

# (layout, run): how many times less CPU than annbatch; between two of them the smaller counts
_LESS_CPU = {
    ("annbatch", 32): 1.6,
    ("annbatch", 64): 1.15,
    ("annbatch", 256): 1.15,
    ("annbatch", 512): 1.15,
    ("aligned", 32): 2.5,
}
_CHUNK, _LONG = 64, 512
_SINGLE_ROWS, _DENSE_STORE, _DENSE_ROWS = 4.0, 1.5, 5.0
_FLOOR, _STRETCH, _SAME = 0.55, 1.1, 0.1
SMALL = "the goals are about the full stores"
_NO_TORCH = "annbatch had no torch: its dense rows are SciPy's"


def of_comparison(found: Comparison, *, torch: bool, full: bool) -> list[Verdict]:
    """Goals of one layout and one length of runs.

    Args:
        found: the comparison.
        torch: whether annbatch had torch for its dense rows.
        full: whether the stores have the size that the goals are about; nothing is met or missed on others.
    """
    small, run = "" if full else SMALL, found.task.run
    torchless = small or ("" if torch else _NO_TORCH)
    rows: list[tuple[str, str, str, float | None, str]] = [
        ("less CPU than annbatch", "annbatch", "ours", _less_cpu(found.layout, run), small),
        ("share of the floor, CPU", "floor", "ours", _FLOOR if run == _LONG else None, small),
        ("dense rows, less CPU than annbatch", "annbatch-dense", "ours-dense", _DENSE_ROWS, torchless),
        ("chosen genes dense, less CPU than all sparse", "ours", "ours-genes", 1.0, small),
    ]
    judged = [
        _judged(f"{found.title}: {goal}", seen, bound, note)
        for goal, above, below, bound, note in rows
        if bound and (seen := found.cpu_ratio(above, below))
    ]
    return judged + _unaided(found, small)


def of_loaders(found: Comparison, *, full: bool) -> list[Verdict]:
    """Goals of one layout and one length of runs through the loaders, in whole epochs.

    An `OrderedLoader` mixes chunks of 64 rows, whatever the runs of a sampler are: it is judged by runs of 64.
    """
    run, small = found.task.run, "" if full else SMALL
    bound = _less_cpu("annbatch" if run == _CHUNK and found.layout == "aligned" else found.layout, run)
    seen = {name: found.cpu_ratio("annbatch-loader", name) for name in ("loader", "ordered")}
    judged = [
        _judged(f"{found.title}: {KINDS[name].title}, less CPU than annbatch's Loader", ratio, bound, small)
        for name, ratio in seen.items()
        if ratio and bound and (name == "loader" or run == _CHUNK)
    ]
    genes = found.cpu_ratio("ordered", "ordered-genes")
    title = f"{found.title}: {KINDS['ordered-genes'].title}, less CPU than all sparse"
    return judged + ([_judged(title, genes, 1.0, small)] if genes else [])


def of_overlap(found: Overlap, *, full: bool) -> list[Verdict]:
    """Goals of our loaders with steps: epochs after the first of a job, and a first one with early prefetch."""
    names = [name for name in ("loader", "ordered") if name in found.later_s]
    rows = [(name, "an epoch", found.later_s) for name in names]
    rows += [(name, f"a first epoch begun {EARLY_S} s early", found.early_s) for name in names if name in found.early_s]
    return [
        Verdict(
            goal=f"{found.title}: {KINDS[name].title}, {which} with steps as long as a batch "
            f"<= {_STRETCH} times the longer of the two",
            seen=f"{found.stretch(name, of)}; the first of a job that does not begin early: "
            f"{found.stretch(name, found.first_s)}",
            met=found.stretch(name, of).median <= _STRETCH if full else None,
            note="the step sleeps, as one on a device" if full else SMALL,
        )
        for name, which, of in rows
    ]


def _unaided(found: Comparison, small: str) -> list[Verdict]:
    """Our speed where zarrs cannot be imported; it must not be loaded where it can, either."""
    seen = found.cpu_ratio("ours-unaided", "ours")
    if seen is None:
        return []
    loaded = {"ours", "ours-unaided"} & found.imported_zarrs
    same = abs(seen.median - 1) <= _SAME and not loaded
    note = "zarrs was loaded by rankwise" if loaded else "rankwise loads it in neither process"
    return [
        Verdict(
            goal=f"{found.title}: CPU without zarrs / with it = 1 +- {_SAME}",
            seen=str(seen),
            met=None if small else same,
            note=small or note,
        )
    ]


def _less_cpu(layout: str, run: int) -> float | None:
    if run == 1:
        return _SINGLE_ROWS
    return _DENSE_STORE if layout == "dense" else _LESS_CPU.get((layout, run))


def _judged(goal: str, seen: Spread, bound: float, note: str) -> Verdict:
    found = at_least(goal, seen, bound, note)
    return Verdict(goal=found.goal, seen=found.seen, met=None if note else found.met, note=note)
