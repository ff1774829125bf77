"""The page's sections about a run's files: configuration, attempts, checkpoints, profile and scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rankwise.diagnose.report.markup import (
    Columns,
    Markup,
    el,
    join,
    none,
    not_recorded,
    records_table,
    short_number,
    table,
    text_of,
)
from rankwise.diagnose.report.run_record import RunRecord, as_dict, as_dicts, as_list
from rankwise.diagnose.report.series import is_number

_MOST_DETAILS = 10


def moment(seconds: object) -> str:
    """Return a time (seconds since 1970) as text, in UTC."""
    if not is_number(seconds):
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return text_of(seconds)


def size_text(num_bytes: float) -> str:
    """Return a size with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}" if unit != "B" else f"{num_bytes:.0f} B"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def made_of(runs: Sequence[RunRecord]) -> Markup:
    """Return the configurations of the runs side by side, with differences marked."""
    columns = [_flat(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        values = [column.get(name, "-") for column in columns]
        differs = len(set(values)) > 1
        label = el("strong", name, " ≠") if differs else name
        rows.append([label, *(el("code", value) for value in values)])
    return table(["", *(run.name for run in runs)], rows, name="what made the runs")


def _flat(run: RunRecord) -> dict[str, str]:
    around = run.attempts[-1][1] if run.attempts else {}
    code = as_dict(around.get("code"))
    command = around.get("command")
    flat = {
        "directory": str(run.path),
        "command": " ".join(map(str, command)) if isinstance(command, list) else text_of(command),
        "code": f"{code.get('commit')}{' + changes' if code.get('dirty') else ''}" if code else "no git repository",
        "ranks": f"{text_of(around.get('world_size'))} on {text_of(around.get('num_nodes'))} machine(s)",
        "device": f"{text_of(around.get('device'))}, {text_of(around.get('backend'))}",
        "created": moment(run.config.get("created")),
    }
    taken = {"command", "code", "world_size", "num_nodes", "device", "backend", "time", "pid", "interrupted", "changed"}
    flat |= {name: text_of(value) for name, value in around.items() if name not in taken}
    _flatten("", as_dict(run.config.get("config")), flat, depth=0)
    return flat


def _flatten(prefix: str, value: dict[str, Any], into: dict[str, str], *, depth: int) -> None:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and depth < 6:
            _flatten(f"{prefix}{name}.", inner, into, depth=depth + 1)
        else:
            into[f"config {prefix}{name}"] = text_of(inner)


def attempts(run: RunRecord) -> Markup:
    """Return the attempts: their start time, first step, and how they ended."""
    if not run.attempts:
        return join([not_recorded("config.json names no attempt"), _failures(run)])
    starts = dict(run.starts)
    following = [*(record.get("time") for _, record in run.attempts[1:]), math.inf]
    rows = [
        [
            number,
            moment(record.get("time")),
            text_of(record.get("host")),
            text_of(record.get("world_size")),
            text_of(starts.get(number)),
            text_of(max((line["step"] for line in run.lines if line["attempt"] == number), default=None)),
            _ending(run, number, record, end),
            ", ".join(map(str, as_list(record.get("changed")))) or "-",
        ]
        for (number, record), end in zip(run.attempts, following, strict=True)
    ]
    head = ["attempt", "started", "host", "ranks", "from step", "last step that counts", "how it ended", "changed"]
    return join([table(head, rows, name=f"attempts of {run.name}"), _failures(run)])


def _failures(run: RunRecord) -> Markup:
    """Return the launcher's failure records; a failure before the run was opened belongs to no attempt."""
    columns: Columns = {
        "failed": lambda one: moment(one.get("time")),
        "rank": lambda one: f"{text_of(one.get('rank'))} of {text_of(one.get('world_size'))}",
        "host": "host",
        "exit": _exit,
        "step": "step",
        "restarts before": "attempt",
        "cause": "cause",
    }
    shown = records_table(run.failures, columns, name=f"failures of {run.name}")
    return join([shown, *map(_detail, run.failures[-_MOST_DETAILS:])])


def _exit(one: dict[str, Any]) -> str:
    if one.get("hang"):
        return "hung"
    return text_of(one.get("signal")) if one.get("signal") else text_of(one.get("status", one.get("exitcode")))


def _detail(one: dict[str, Any]) -> Markup | None:
    """Return the traceback or stacks of a failure, and how the other ranks ended."""
    places = [f"rank {rank} was at {text_of(place)}" for rank, place in as_dict(one.get("places")).items()]
    lines = [str(one.get("traceback") or "").rstrip(), *places, *map(text_of, as_list(one.get("others")))]
    text = "\n".join(line for line in lines if line)
    if not text:
        return None
    title = f"{moment(one.get('time'))}: rank {text_of(one.get('traceback_of', one.get('rank')))}, and the others"
    return el("details", el("summary", title), el("pre", text))


def _ending(run: RunRecord, number: int, record: dict[str, Any], end: object) -> str:
    asked = as_dict(record.get("interrupted"))
    if asked:
        return f"saved and stopped at step {text_of(asked.get('step'))}: {text_of(asked.get('reason'))}"
    if run.finished.get("attempt") == number:
        return "finished"
    begin = record.get("time")
    for one in run.failures:
        when = one.get("time")
        if is_number(begin) and is_number(when) and begin <= when and not (is_number(end) and when >= end):
            return (
                f"rank {text_of(one.get('rank'))} {text_of(one.get('cause'))}"
                if "rank" in one
                else text_of(one.get("cause"))
            )
    if number == run.attempts[-1][0] and run.status == "running":
        return "running"
    return "not recorded: the launcher was killed as well, or it was not rankwise run --run-dir"


def checkpoints(run: RunRecord) -> Markup:
    """Return the existing checkpoints, with the best one marked."""
    best, why = _best(run)
    columns: Columns = {
        "step": lambda info: el("strong", info["step"], " ★ best") if info is best else text_of(info["step"]),
        "saved": lambda info: moment(info.get("time")),
        "attempt": "attempt",
        "ranks": "world_size",
        "size": lambda info: size_text(info["size"]),
        "metrics": lambda info: (
            ", ".join(f"{name} {text_of(value)}" for name, value in as_dict(info.get("metrics")).items()) or "-"
        ),
    }
    shown = records_table(run.checkpoints, columns, name=f"checkpoints of {run.name}")
    return join([shown, el("p", why, class_="note")]) if shown else none("none in checkpoints/")


def _best(run: RunRecord) -> tuple[dict[str, Any], str]:
    """Return the best checkpoint, if its metric is known (else {}), and by what it is the best."""
    options = as_dict(as_dict(run.config.get("config")).get("train"))
    name, sign = str(options.get("best_metric") or "val_loss"), -1 if options.get("best_mode") == "max" else 1
    logged = {line["step"]: line[name] for line in run.lines if name in line}
    known: list[tuple[float, dict[str, Any]]] = []
    for info in run.checkpoints:
        value = as_dict(info.get("metrics")).get(name)
        value = logged.get(info["step"]) if value is None else value
        if is_number(value):
            known.append((sign * value, info))
    if not known:
        return (
            {},
            f"The best checkpoint is unknown: neither the checkpoints nor the metrics of their steps have {name}.",
        )
    best = min(known, key=lambda pair: pair[0])[1]
    return best, f"Best of these by {name} ({'highest' if sign < 0 else 'lowest'})."


def profile(run: RunRecord) -> Markup:
    """Return the profile: the time of the steps by rank as bars and table, the causes, the straggler."""
    found = run.profile
    parts = [str(part) for part in as_list(found.get("parts"))]
    ranks = as_dicts(found.get("ranks"))
    if not parts or not ranks:
        return not_recorded("run ", el("code", "rankwise profile"))
    rows = [
        [
            text_of(rank.get("rank")),
            text_of(rank.get("host")),
            _ms(rank.get("step_ms")),
            *(_ms(as_dict(rank.get("mean_ms")).get(part)) for part in parts),
            _ms(rank.get("ready_ms")),
            short_number(rank.get("score")),
        ]
        for rank in ranks
    ]
    head = ["rank", "host", "step", *parts, "first bucket ready", "score"]
    return join(
        [
            el("p", f"{_ms(found.get('step_ms'))} a step (median), {text_of(found.get('world_size'))} ranks, "
               f"{text_of(found.get('device'))}, {len(as_list(found.get('steps')))} steps recorded."),
            _bars(parts, ranks),
            table(head, rows, name=f"times per rank of {run.name}"),
            _straggler(as_dict(found.get("straggler"))),
            records_table(as_dicts(found.get("findings")), _CAUSES, name="causes"),
            _sweep(as_dict(found.get("sweep"))),
        ]
    )  # fmt: skip


def _ms(value: object) -> str:
    return f"{short_number(value)} ms" if is_number(value) else "-"


def _bars(parts: Sequence[str], ranks: Sequence[dict[str, Any]]) -> Markup:
    shown = ranks[:64]
    values = [[_number(as_dict(rank.get("mean_ms")).get(part)) for part in parts] for rank in shown]
    longest = max((sum(row) for row in values), default=0.0) or 1.0
    rows = []
    for rank, row in zip(shown, values, strict=True):
        left, pieces = 0.0, []
        for index, (part, value) in enumerate(zip(parts, row, strict=True)):
            width = 100 * value / longest
            title = el("title", f"{part}: {_ms(value)}")
            place = {"x": f"{left:.3f}%", "width": f"{width:.3f}%", "y": 0, "height": 18}
            pieces.append(el("rect", title, class_=f"part{index % 8}", **place))
            left += width
        label = ", ".join(f"{part} {_ms(value)}" for part, value in zip(parts, row, strict=True))
        bar = el("svg", *pieces, width="100%", height=18, role="img", aria_label=label)
        rows.append(el("div", el("span", f"rank {text_of(rank.get('rank'))}"), bar, class_="bar"))
    keys = [el("li", el("i", class_=f"part{index % 8}"), part) for index, part in enumerate(parts)]
    more = el("p", f"the first 64 of {len(ranks)} ranks", class_="note") if len(ranks) > 64 else None
    return join([el("ul", *keys, class_="key"), *rows, more])


def _number(value: object) -> float:
    return float(value) if is_number(value) and value > 0 else 0.0


def _straggler(found: dict[str, Any]) -> Markup:
    if not found:
        return el("p", "No straggler: no rank was ready last by a clear margin.")
    share = _number(found.get("last_share"))
    return el(
        "p",
        el("strong", f"Straggler: rank {text_of(found.get('rank'))}"),
        f", {_ms(found.get('lag_ms'))} behind the median rank, last in {share:.0%} of the steps, "
        f"score {short_number(found.get('score'))}.",
        class_="warn",
    )


_CAUSES: Columns = {
    "cause": "cause",
    "rank": "rank",
    "costs per step": lambda finding: _ms(finding.get("cost_ms")),
    "share": lambda finding: f"{_number(finding.get('share')):.1%}",
    "what": "text",
    "what to change": "change",
}


def _sweep(found: dict[str, Any]) -> Markup | None:
    columns: Columns = {
        text_of(found.get("setting")): "value",
        "step": lambda one: _ms(one.get("step_ms")),
        "quartiles": lambda one: f"{_ms(one.get('low_ms'))} to {_ms(one.get('high_ms'))}",
        "verdict": "verdict",
    }
    return records_table(as_dicts(found.get("values")), columns, name="sweep of a setting")


def scaling(run: RunRecord) -> Markup | None:
    """Return the throughput by number of ranks; None if not measured."""
    unit = text_of(run.scaling.get("unit"))
    columns: Columns = {
        "ranks": "ranks",
        "throughput": lambda size: f"{short_number(size.get('throughput'))} {unit}",
        "quartiles": lambda size: f"{short_number(size.get('low'))} to {short_number(size.get('high'))}",
        "efficiency": lambda size: short_number(size.get("efficiency")),
        "verdict": lambda size: text_of(size.get("text") or size.get("verdict")),
    }
    return records_table(as_dicts(run.scaling.get("sizes")), columns, name="scaling")
