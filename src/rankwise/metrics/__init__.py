"""Metrics that accumulate on each rank and are reduced over ranks in one collective when they are read."""

from rankwise.metrics.counters import Counters
from rankwise.metrics.group import Metrics
from rankwise.metrics.metric import Metric
from rankwise.metrics.reduction import reduce
from rankwise.metrics.rows import gather_rows
from rankwise.metrics.values import Max, Mean, Min, Sum

__all__ = ["Counters", "Max", "Mean", "Metric", "Metrics", "Min", "Sum", "gather_rows", "reduce"]
