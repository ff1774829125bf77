"""Prints the tables."""

from __future__ import annotations

from _common.header import span_of

from _rows.comparison import Comparison
from _rows.readers import KINDS


def print_comparison(found: Comparison) -> None:
    """Print one row for each reader: medians with quartiles, ratios round by round."""
    rounds, base = len(found.loads), KINDS[found.base].title
    print(f"\n{found.title}; {rounds} rounds of {found.num_rows} rows; load {span_of(found.loads)}")
    print(f"| reader | CPU us per row | rows/s | CPU / {base} | wall / {base} | CPU / floor |")
    print("|---|---|---|---|---|---|")
    for name in sorted(found.cpu_s, key=list(KINDS).index):
        print(
            f"| {KINDS[name].title} | {found.cpu_us(name)} | {found.rows_per_s(name)} "
            f"| {found.cpu_ratio(name, found.base) or '-'} | {found.wall_ratio(name, found.base) or '-'} "
            f"| {found.cpu_ratio(name, 'floor') or '-'} |"
        )
    print(end="", flush=True)
