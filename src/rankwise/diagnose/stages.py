"""Examine a script in stages, the cheapest first: code, machine, one rank, two ranks, profile, and NCCL last."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from rankwise.diagnose.comparison import Finding, Verdict
from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.doctor.doctor import check_here, choose_sections
from rankwise.diagnose.lint import find_settings, lint_paths
from rankwise.diagnose.profile import Script, profile_script
from rankwise.diagnose.verify import verify_script
from rankwise.errors import ConfigError, DataError, LaunchError

_RUNS = ("one rank", "two ranks")
_NCCL = "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log for the job, then doctor --nccl-log nccl.%h.%p.log"
_LONG_S = 600.0
_SHOWN_SHARE = 0.05


def examine_script(
    script: str,
    args: Sequence[str] = (),
    *,
    steps: int = 5,
    deadline_s: float = _LONG_S,
    sections: tuple[Collection[str], Collection[str]] = ((), ()),
) -> list[Check]:
    """Lint a script, check this machine, run its first optimizer steps on 1 and on 2 gloo ranks, and profile some.

    The first stage that fails ends the examination, because later stages would only show consequences. Call it in the
    main thread of a process without other threads; the script ends after its steps.

    Args:
        script: the script's path.
        args: its arguments; ``{ranks}`` and ``{dir}`` are replaced as in `verify_script`.
        steps: optimizer steps per run.
        deadline_s: time limit per run; at least ten minutes, because data may have to be read first.
        sections: selected sections (empty: all), and skipped sections.

    Raises:
        ConfigError: the script or a section does not exist.
    """
    if not Path(script).is_file():
        raise ConfigError(f"no script {script!r} in {Path.cwd()}")
    wanted = choose_sections(*sections)
    checks = _code(Path(script)) if "code" in wanted else []
    if _failed(checks) is None:
        checks += check_here(wanted)
    limit_s = max(deadline_s, _LONG_S)
    stopped = _failed(checks)
    if stopped is None and wanted & set(_RUNS):
        with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as folder:
            verdict = verify_script(
                script, args, ranks=(1, 2), steps=steps, folder=Path(folder), stop=True, timeout_s=limit_s
            )
        checks += check_runs(verdict, steps)
        stopped = _failed(checks)
    if stopped is None and "profile" in wanted:
        checks += _profile(Script(path=script, args=tuple(args), num_threads=1, timeout_s=limit_s), steps)
    done = {check.section for check in checks}
    for name in (*_RUNS, "profile", "nccl"):
        why = f"stopped at {stopped}" if stopped else "looked at last, in the job itself"
        if name not in done:
            mend = _NCCL if name == "nccl" and not stopped else ""
            checks.append(not_run(name, "first steps" if name in _RUNS else name, why, mend))
    return [check for check in checks if check.section in wanted]


def _profile(script: Script, steps: int) -> list[Check]:
    """Profile some steps on two ranks; the times depend on this machine, gloo and its other load."""
    name = "time of a step"
    try:
        with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as folder:
            found = profile_script(script, num_ranks=2, steps=steps, skip=1, folder=Path(folder))
    except (LaunchError, DataError) as error:
        # the script ran before, so this failure is caused by the profiler, or comes after the verified steps
        make = not_run if str(error).startswith(f"{script.path} took ") else failed
        return [make("profile", name, str(error), f"rankwise profile --nproc 2 --steps N --skip N {script.path}")]
    parts = sorted(found.share().items(), key=lambda pair: -pair[1])
    shares = ", ".join(f"{part} {share:.0%}" for part, share in parts if share >= _SHOWN_SHARE)
    checks = [passed("profile", name, f"{found.step_ms:.3g} ms on 2 gloo ranks of this machine: {shares}")]
    # no warning for costs that depend on machine and network: use `rankwise profile` in the job for these
    costly = [finding for finding in found.findings if finding.cause in {"data", "straggler"}]
    return checks + [warned("profile", finding.cause, finding.text, finding.change) for finding in costly]


def _failed(checks: Sequence[Check]) -> str | None:
    return next((check.section for check in checks if check.status == "fail"), None)


def _code(script: Path) -> list[Check]:
    """Lint the script; errors count as failures, because the script fails or does not train as intended."""
    report = lint_paths([script], find_settings(script.parent))
    checks = []
    for found in report.findings:
        told = f"{found.file}:{found.line}: {found.message}"
        make = failed if found.rule.level == "error" else warned
        checks.append(make("code", f"{found.rule.code} {found.rule.slug}", told, f"rankwise rule {found.rule.code}"))
    for failure in report.failures:
        told = f"{failure.file}:{failure.line}: {failure.message}"
        checks.append(failed("code", "lint", told, "the file must be Python that can be parsed"))
    return checks or [passed("code", "lint", f"nothing found in {report.num_lines} lines")]


def check_runs(verdict: Verdict, steps: int) -> list[Check]:
    """Return whether each run succeeded, and where the second one differs from the first."""
    checks = []
    for name, run in zip(_RUNS, ("1 rank", "2 ranks"), strict=True):
        found = [finding for finding in verdict.findings if finding.run == run]
        checks += [_as_check(name, finding) for finding in found]
        if not found:
            agreed = next((line for line in verdict.agreement if line.startswith(run)), "")
            checks.append(passed(name, "first steps", agreed or f"up to {steps} optimizer steps taken"))
        if any(finding.what == "failed" for finding in found):
            break
    return checks


def _as_check(section: str, finding: Finding) -> Check:
    at = "" if finding.step is None else f"step {finding.step}: "
    lines = [line for line in finding.text.splitlines() if line.strip()]
    short = lines if len(lines) <= 12 else [*lines[:4], "...", *lines[-7:]]
    name = "first steps" if finding.what == "failed" else f"differs: {finding.what}"
    ranks = {"one rank": 1, "two ranks": 2}[section]
    mend = finding.reason or f"fix the error above; to run this stage alone: rankwise run --nproc {ranks} SCRIPT"
    return failed(section, name, at + "\n           ".join(short), mend)
