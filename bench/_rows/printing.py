"""Tables on standard output."""

from __future__ import annotations

from _rows.comparing import Comparison
from _rows.readers import KINDS


def print_comparison(found: Comparison) -> None:
    """Print one row for each reader: medians with quartiles, ratios round by round."""
    rounds, loads = len(found.loads), f"{min(found.loads):.1f} to {max(found.loads):.1f}"
    print(f"\n{found.title}; {rounds} rounds of {found.num_rows} rows; load {loads}")
    print("| reader | CPU us per row | rows/s | CPU / ours | CPU / floor |")
    print("|---|---|---|---|---|")
    for name in sorted(found.cpu_s, key=list(KINDS).index):
        print(
            f"| {KINDS[name].title} | {found.cpu_us(name)} | {found.rows_per_s(name)} "
            f"| {found.cpu_ratio(name, 'ours') or '-'} | {found.cpu_ratio(name, 'floor') or '-'} |"
        )
    print(end="", flush=True)
