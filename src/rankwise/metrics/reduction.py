"""`reduce`: all metrics of all ranks in one collective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.errors import ConfigError, DesyncError
from rankwise.metrics.host import partials_on_host
from rankwise.metrics.metric import Metric
from rankwise.metrics.torchmetric import TorchMetricAdapter, is_torchmetric
from rankwise.world import World


def reduce(metrics: Mapping[str, Any], world: World | None = None, *, reset: bool = False) -> dict[str, Any]:
    """Return the value of every metric over all ranks, equal on all of them. Every rank must call it.

    It needs one collective: the partials are copied from the devices (the only synchronisation), gathered, and merged
    in rank order on every rank. The local metrics stay unchanged unless `reset`.

    Args:
        metrics: `Metric` by name; or torchmetrics metrics whose states reduce by sum, min, max or cat; or mappings of
            these, whose names are joined by "/".
        world: default ``World.current()``.
        reset: reset the local metrics afterwards.

    Returns:
        Value by name, sorted: numbers; tensors if a torchmetrics metric computes more than one number.

    Raises:
        ConfigError: a value is not a metric, or cannot be merged exactly.
        DesyncError: the ranks have different names or kinds of metrics; the message lists them.
    """
    world = World.current() if world is None else world
    error: Exception | None = None
    flat: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    try:
        flat = flatten(metrics)
        own = {name: metric for name, metric in flat.items() if not isinstance(metric, TorchMetricAdapter)}
        whole = {name: metric.state_dict() for name, metric in flat.items() if name not in own}
        mine = {**partials_on_host(own), **whole}
    except Exception as caught:  # noqa: BLE001  (the other ranks are in the collective: they must hear of it)
        error = caught
    kinds = {name: type(getattr(metric, "metric", metric)).__name__ for name, metric in flat.items()}
    gathered = world.all_gather_object((None if error is None else f"{type(error).__name__}: {error}", kinds, mine))
    if error is not None:
        raise error
    _refuse_failed([failed for failed, _, _ in gathered])
    _refuse_different([names for _, names, _ in gathered])
    values = {
        name: metric.read_state(metric.merge_states([states[name] for _, _, states in gathered]))
        for name, metric in sorted(flat.items())
    }
    if reset:
        for metric in flat.values():
            metric.reset()
    return values


def flatten(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `Metric` by joined name.

    Raises:
        ConfigError: a value is not a metric.
    """
    flat: dict[str, Any] = {}
    if not isinstance(metrics, Mapping) and not hasattr(metrics, "compute_groups"):
        raise ConfigError(f'metrics are reduced by name: {{"loss": Mean()}}; got a {type(metrics).__name__}')
    for name, metric in metrics.items():
        if is_torchmetric(metric):
            found: dict[str, Any] = {f"{prefix}{name}": TorchMetricAdapter(f"{prefix}{name}", metric)}
        elif isinstance(metric, Mapping) or hasattr(metric, "compute_groups"):
            found = flatten(dict(metric.items()), f"{prefix}{name}/")
        elif isinstance(metric, Metric):
            found = {f"{prefix}{name}": metric}
        else:
            raise ConfigError(
                f"{prefix}{name} is a {type(metric).__name__}, not a metric: reduce accepts Mean, Sum, Max, Min, "
                "torchmetrics metrics and mappings of them (plain numbers: update a Mean or a Counters with them)"
            )
        if taken := sorted({*flat} & {*found}):
            raise ConfigError(f"two metrics have the name {taken[0]!r} after the names are joined by '/'; rename one")
        flat |= found
    return flat


def _refuse_failed(failures: list[str | None]) -> None:
    failed = tuple(rank for rank, text in enumerate(failures) if text is not None)
    if failed:
        told = "; ".join(f"rank {rank}: {failures[rank]}" for rank in failed)
        raise DesyncError(f"metrics could not be reduced, because another rank failed: {told}", ranks=failed)


def _refuse_different(kinds: list[dict[str, str]]) -> None:
    different = tuple(rank for rank, names in enumerate(kinds) if names != kinds[0])
    if not different:
        return
    lines = []
    for rank in different:
        items, first = set(kinds[rank].items()), set(kinds[0].items())
        less, more = sorted(f"{k} ({v})" for k, v in first - items), sorted(f"{k} ({v})" for k, v in items - first)
        lines.append(
            f"rank {rank}" + (f" lacks {', '.join(less)}" if less else "") + (f" has {', '.join(more)}" if more else "")
        )
    raise DesyncError(
        "reduce needs the same metrics on all ranks, but compared to rank 0 "
        + "; ".join(lines)
        + ": create all metrics "
        "on every rank (also those without updates), or use Counters, whose names may differ",
        ranks=different,
    )
