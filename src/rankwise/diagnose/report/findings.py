"""A run's problems: failures, findings of the guard, the linter and the doctor, hangs, skipped samples."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.diagnose.report.markup import Columns, Markup, el, join, none, not_recorded, records_table, text_of
from rankwise.diagnose.report.run_record import RunRecord, as_dict, as_dicts
from rankwise.diagnose.report.series import summary

_KEPT = "rankwise run --run-dir"


def attention(run: RunRecord, curves: dict[str, list[tuple[int, float]]]) -> list[tuple[str, str, str]]:
    """Return the most important problems: (level, text, id of the section)."""
    found = []
    if run.failures:
        found.append(("error", f"{len(run.failures)} start(s) of the ranks ended in a failure", "attempts"))
    num_hangs = len(_verdicts(run))
    if num_hangs:
        found.append(("error", f"the run hung {num_hangs} time(s)", "hangs"))
    if _guarded(run):
        found.append(("error", f"the guard found {len(_guarded(run))} thing(s)", "guard"))
    for name, points in curves.items():
        odd = summary(points)["num_odd"]
        if odd:
            found.append(("error", f"{name} is not finite at {odd} of {len(points)} points", "curves"))
    found += _checked(run)
    if run.logs.skipped or _num_lost(run):
        found.append(("warning", "samples were left out", "skipped"))
    if as_dict(run.profile.get("straggler")):
        rank = text_of(as_dict(run.profile["straggler"]).get("rank"))
        found.append(("warning", f"rank {rank} is a straggler", "time"))
    found += [("warning", note, "notes") for note in run.notes]
    return found


def _checked(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return the problems found by the linter and the doctor."""
    found = []
    levels = [str(finding.get("level")) for finding in run.lint or []]
    if levels:
        found.append(("error" if "error" in levels else "warning", f"lint: {len(levels)} finding(s)", "lint"))
    for status, level in (("fail", "error"), ("warn", "warning")):
        checks = [check for check in run.doctor or [] if check.get("status") == status]
        if checks:
            found.append((level, f"doctor: {len(checks)} check(s) with status {status}", "doctor"))
    return found


def guard(run: RunRecord) -> Markup:
    """Return the section with the guard's findings, from the trainer's record, else from the logs."""
    if not (run.logs.are_kept or run.findings):
        return not_recorded("the logs are kept by ", el("code", _KEPT))
    return _log_lines(_guarded(run), "nothing found")


def _guarded(run: RunRecord) -> list[tuple[str, str]]:
    """Return (where, text) of the guard's findings."""
    kept = [
        (f"attempt {number}", text_of(one.get("text")))
        for number, record in run.findings
        for one in as_dicts(record.get("guard"))
    ]
    return kept or list(run.logs.guard)


def _num_lost(run: RunRecord) -> object:
    return run.findings[-1][1].get("num_lost") if run.findings else None


def skipped(run: RunRecord) -> Markup:
    """Return the section about skipped damaged samples: their number from the trainer, their names from the logs."""
    if _num_lost(run):
        told_so = el("p", f"{text_of(_num_lost(run))} samples by step {text_of(run.findings[-1][1].get('num_steps'))}")
        return join([told_so, _log_lines(run.logs.skipped, "")])
    if not run.logs.are_kept:
        return not_recorded("the logs are kept by ", el("code", _KEPT))
    return _log_lines(run.logs.skipped, "none in the logs")


def _log_lines(lines: Sequence[tuple[str, str]], nothing: str) -> Markup:
    if not lines:
        return none(nothing)
    return el("ul", *(el("li", text, " ", el("small", where)) for where, text in lines), class_="said")


def hangs(run: RunRecord) -> Markup:
    """Return the section with the verdicts on hangs."""
    return _log_lines(_verdicts(run), "none recorded")


def _verdicts(run: RunRecord) -> list[tuple[str, str]]:
    """Return (where, text) of each hang: from the launcher's and the watch's records, else from the logs."""
    ended = [
        ("ended the attempt", f"rank {text_of(one.get('rank'))} {text_of(one['hang'])}")
        for one in run.failures
        if one.get("hang")
    ]
    went_on = [("the run continued", text_of(one.get("text"))) for one in run.standstills]
    saved = [(text_of(stall["file"]), text_of(as_dict(stall.get("verdict")).get("text"))) for stall in run.stalls]
    return [*ended, *went_on, *saved] or list(run.logs.hangs)


def lint(run: RunRecord) -> Markup:
    """Return the section with the linter's findings, if saved."""
    if run.lint is None:
        return not_recorded(
            el("code", f"rankwise lint --output-format json SCRIPT > {run.name}/lint.json"), ", or --lint FILE"
        )
    columns: Columns = {
        "level": lambda one: badge(text_of(one.get("level"))),
        "rule": "code",
        "name": "slug",
        "place": lambda one: f"{text_of(one.get('file'))}:{text_of(one.get('line'))}",
        "what": "message",
    }
    return records_table(run.lint, columns, name=f"lint findings of {run.name}") or none("nothing found")


def doctor(run: RunRecord) -> Markup:
    """Return the section with the doctor's checks, if saved: problems first."""
    if run.doctor is None:
        return not_recorded(el("code", f"rankwise doctor --json > {run.name}/doctor.json"), ", or --doctor FILE")
    checks = sorted(run.doctor, key=lambda check: {"fail": 0, "warn": 1}.get(str(check.get("status")), 2))
    columns: Columns = {
        "": lambda check: badge(text_of(check.get("status"))),
        "section": "section",
        "check": "name",
        "evidence": "evidence",
        "mend": lambda check: text_of(check.get("mend")) or "-",
    }
    bad = sum(check.get("status") in ("fail", "warn") for check in checks)
    inner = records_table(checks, columns, name=f"doctor's checks of {run.name}")
    return el("details", el("summary", f"{len(checks)} checks, {bad} with problems"), inner, open=bool(bad))


def badge(word: str) -> Markup:
    """Return a coloured badge for a level or a status."""
    kind = {"error": "bad", "fail": "bad", "warning": "odd", "warn": "odd", "pass": "good"}.get(word, "dim")
    return el("span", word, class_=f"badge {kind}")
