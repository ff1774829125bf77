"""The whole page: one file, no network, and a content security policy that allows no other script."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rankwise._files import write_named
from rankwise._version import __version__
from rankwise.diagnose.report import findings, sections
from rankwise.diagnose.report.markup import Markup, el, island, join, none, not_recorded, table, text_of
from rankwise.diagnose.report.run_record import RunRecord, read_run, read_saved
from rankwise.diagnose.report.series import collect, envelope, summary
from rankwise.errors import ConfigError

_POINTS = 36_000  # for all curves together: about a megabyte of JSON
_MOST_CHARTS = 120
_RATES = ("_per_s", "wait_share", "_mib", "_bytes")
Curves = list[dict[str, list[tuple[int, float]]]]


def write_report(
    paths: Sequence[Path], out: Path, *, lint: Path | None = None, doctor: Path | None = None
) -> list[RunRecord]:
    """Write the page about one or several runs from their directories. Nothing is executed.

    Args:
        paths: run directories.
        out: the HTML file; replaced atomically, unless it is a device or a pipe.
        lint: JSON of `rankwise lint`, else each run's ``lint.json``.
        doctor: JSON of `rankwise doctor`, else each run's ``doctor.json``.

    Returns:
        The record of each run.

    Raises:
        ConfigError: a directory holds no run, a file has invalid content, or the page cannot be written.
    """
    found = None if lint is None else read_saved(lint, "findings")
    checks = None if doctor is None else read_saved(doctor, "checks")
    names = _names(paths)
    runs = [read_run(path, name=name, lint=found, doctor=checks) for path, name in zip(paths, names, strict=True)]
    try:
        write_named(out, _page(runs).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"the page cannot be written to {str(out)!r}: {error.strerror}; choose another -o") from error
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each run: the folder's name, with as many parents as needed to be unique."""
    whole = [Path(os.path.realpath(path)) for path in paths]  # `resolve` fails on a loop of links
    if len(set(whole)) < len(whole):
        raise ConfigError("report needs each run once, but one directory was given twice")
    for depth in range(1, 1 + max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            break
    return names


def _page(runs: Sequence[RunRecord]) -> str:
    curves = [collect(run.lines) for run in runs]
    charts, series, left_out = _charts(curves)
    data = {
        "runs": [
            {
                "name": run.name,
                "restarts": [step for attempt, step in run.starts[:200] if attempt > 1],
                "saved": [info["step"] for info in run.checkpoints[-200:]],
            }
            for run in runs
        ],
        "charts": series,
    }
    style, script = (resources.files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    title = f"{', '.join(run.name for run in runs)} - rankwise report"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", title),
        el("style", Markup(style)),
    )
    body = el("body", _body(runs, curves, charts, left_out), island("data", data), el("script", Markup(script)))
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _charts(curves: Curves) -> tuple[dict[bool, list[Markup]], list[dict[str, Any]], list[str]]:
    """Return the figures (by whether they are about speed), their curves for the script, and the names left out."""
    names = sorted({name for run in curves for name in run}, key=_importance)
    shown, left_out = names[:_MOST_CHARTS], names[_MOST_CHARTS:]
    number = sum(name in run for run in curves for name in shown)
    most = min(1500, max(20, _POINTS // max(1, number)))
    figures: dict[bool, list[Markup]] = {False: [], True: []}
    series: list[dict[str, Any]] = []
    for name in shown:
        of_runs = [(index, run[name]) for index, run in enumerate(curves) if name in run]
        figures[name.endswith(_RATES)].append(_figure(name, len(series), of_runs, num_runs=len(curves)))
        series.append({"series": [{"run": index, **envelope(points, most)} for index, points in of_runs]})
    return figures, series, left_out


def _importance(name: str) -> tuple[int, str]:
    order = ["loss", "val_loss", "epoch_loss"]
    if name in order:
        return order.index(name), name
    return (3 if "loss" in name else 5 if name == "lr" or name.startswith("lr_") else 4), name


def _figure(name: str, number: int, of_runs: list[tuple[int, list[tuple[int, float]]]], *, num_runs: int) -> Markup:
    rows = []
    for index, points in of_runs:
        told_of = summary(points)
        cells = [_at(told_of["last"]), _at(told_of["low"]), _at(told_of["high"]), told_of["num_odd"] or "-"]
        rows.append([f"run {index + 1}", *cells] if num_runs > 1 else cells)
    head = [*(["run"] if num_runs > 1 else []), "last", "lowest", "highest", "not finite"]
    label = f"{name} by step. Arrow keys read values, plus zooms in, Escape shows all."
    return el(
        "figure",
        el("figcaption", name),
        el("svg", role="application", tabindex=0, aria_label=label),
        el("p", class_="readout", aria_live="polite"),
        table(head, rows, name=f"numbers of {name}"),
        class_="chart",
        data_chart=number,
    )


def _at(point: tuple[int, float] | None) -> str:
    return "-" if point is None else f"{text_of(point[1])} at {point[0]}"


def _body(
    runs: Sequence[RunRecord], curves: Curves, charts: dict[bool, list[Markup]], left_out: Sequence[str]
) -> Markup:
    kinds: list[tuple[str, str, list[Markup | None]]] = [
        ("curves", "Loss and metrics", _curves(runs, charts[False], left_out)),
        ("speed", "Throughput", [_grid(charts[True])]),
        ("time", "Where the time went", _each(runs, sections.profile)),
        ("attempts", "Attempts and restarts", _each(runs, sections.attempts)),
        ("guard", "Guard", _each(runs, findings.guard)),
        ("hangs", "Hangs", _each(runs, findings.hangs)),
        ("lint", "Lint", _each(runs, findings.lint)),
        ("doctor", "Doctor", _each(runs, findings.doctor)),
        ("skipped", "Skipped samples", _each(runs, findings.skipped)),
        ("checkpoints", "Checkpoints", _each(runs, sections.checkpoints)),
        ("made", "What made it", [sections.made_of(runs)]),
    ]
    if any(run.scaling for run in runs):
        kinds.insert(3, ("scaling", "Scaling", _each(runs, sections.scaling)))
    if any(run.notes or run.num_superseded for run in runs):
        kinds.append(("notes", "Notes", _each(runs, _notes)))
    button = el("button", "Dark colours", id="theme", type="button")
    parts = [el("section", el("h2", title, id=name), *inner) for name, title, inner in kinds]
    return join(
        [
            el("a", "Skip to the curves", href="#curves", class_="skip"),
            el("header", el("h1", "Report: ", ", ".join(run.name for run in runs)), button),
            el("nav", *(el("a", title, href=f"#{name}") for name, title, _ in kinds), aria_label="sections"),
            el("main", _cards(runs, curves), *parts),
            el("footer", f"rankwise {__version__}, {sections.moment(time.time())}", class_="note"),
        ]
    )  # fmt: skip


def _each(runs: Sequence[RunRecord], section: Any) -> list[Markup | None]:
    if len(runs) == 1:
        return [section(runs[0])]
    return [join([el("h3", f"{index}: {run.name}"), section(run)]) for index, run in enumerate(runs, start=1)]


def _cards(runs: Sequence[RunRecord], curves: Curves) -> Markup:
    cards = []
    for run, found in zip(runs, curves, strict=True):
        last = max((line["step"] for line in run.lines), default=None)
        facts = [
            ("status", el("span", run.status, class_=f"badge {'good' if run.status == 'finished' else 'odd'}")),
            ("steps", text_of(last)),
            ("attempts", len(run.attempts)),
            ("ranks", text_of(run.attempts[-1][1].get("world_size")) if run.attempts else "-"),
            ("created", sections.moment(run.config.get("created"))),
            ("last line", sections.moment(run.lines[-1].get("time")) if run.lines else "-"),
        ]
        final = run.finished.get("values")
        values = final.items() if isinstance(final, dict) else ()
        facts += [(name, text_of(value)) for name, value in values if name != "num_steps"][:12]
        look = [
            el("li", findings.badge(level), el("a", text, href=f"#{place}"))
            for level, text, place in findings.attention(run, found)[:20]
        ]  # fmt: skip
        pairs = [join([el("dt", name), el("dd", value)]) for name, value in facts]
        cards.append(
            el(
                "div",
                el("h3", run.name),
                el("dl", *pairs),
                el("ul", *look, class_="look") if look else None,
                class_="run",
            )
        )
    return el("div", *cards, class_="runs")


def _curves(runs: Sequence[RunRecord], figures: Sequence[Markup], left_out: Sequence[str]) -> list[Markup | None]:
    if not any(run.lines for run in runs):
        return [not_recorded("metrics.jsonl holds no step yet")]
    tools = el(
        "div",
        el("button", "Log scale", id="log", type="button", aria_pressed="false"),
        el(
            "label",
            "Smoothing ",
            el("input", id="smooth", type="range", min=0, max=99, value=0),
            el("output", "off", id="smoothed"),
        ),
        el("button", "Show all steps", id="unzoom", type="button", hidden=True),
        el("span", "Drag to zoom; double click or Escape shows all. Bands are lowest to highest.", class_="note"),
        class_="tools",
    )
    keys = [
        el("li", el("svg", data_run=index, aria_hidden="true"), f"{index + 1}: {run.name}")
        for index, run in enumerate(runs)
    ]
    legend = el("ul", *keys, class_="key") if len(runs) > 1 else None
    more = f"Not drawn: {len(left_out)} more metrics ({', '.join(left_out[:20])})" if left_out else None
    return [tools, legend, _grid(figures), el("p", more, class_="note") if more else None]


def _grid(figures: Sequence[Markup]) -> Markup:
    if not figures:
        return not_recorded("no line of metrics holds one")
    return el("div", *figures, class_="charts")


def _notes(run: RunRecord) -> Markup:
    notes = list(run.notes)
    if run.num_superseded:
        notes.append(f"{run.num_superseded} lines of earlier attempts were left behind by a restart and are not drawn")
    return el("ul", *(el("li", note) for note in notes)) if notes else none("none")
