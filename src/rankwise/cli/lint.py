"""`rankwise lint` and `rankwise rule`: find misuse of distributed training without running anything."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rankwise.cli.run import path_argument, path_option, split_names
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.diagnose.lint import Report, Settings


def lint_command(  # noqa: PLR0917  (typer's way: a parameter per option)
    paths: Annotated[list[Path], path_argument(metavar="PATH...", help="Files and folders to check.")],
    output_format: Annotated[
        str,
        typer.Option("--output-format", metavar="FORMAT", help="Output format: full, concise, json, sarif or github."),
    ] = "full",
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Check only these rules: codes, prefixes or slugs, separated by commas. ALL includes info rules.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Disable these rules; names as for --select.")
    ] = None,
    confidence: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Lowest confidence that is reported: high, medium (default) or low."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe fixes.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="Also apply fixes that may change a correct script.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print the changes that --fix would make, without making them.")
    ] = False,
    baseline: Annotated[
        Path | None, path_option(metavar="FILE", help="Do not report findings listed in this baseline file.")
    ] = None,
    write_baseline: Annotated[
        Path | None, path_option(metavar="FILE", help="Write all findings to this baseline file.")
    ] = None,
    add_ignore: Annotated[
        bool, typer.Option("--add-ignore", help="Add a comment that suppresses the finding to every line that has one.")
    ] = False,
    checklist: Annotated[
        bool, typer.Option("--checklist", help="Check the files against the 84 statements of a guide, with all rules.")
    ] = False,
) -> None:
    """Find incorrect use of distributed training in Python, notebooks, shell, Docker and YAML files. Runs no code."""
    from rankwise.diagnose.lint import FORMATS, RULES, find_settings, lint_paths, to_text

    if output_format not in FORMATS:
        raise ConfigError(f"--output-format must be one of {', '.join(FORMATS)}, got {output_format!r}")
    if checklist:
        _checklist(paths, output_format)
    start = paths[0] if paths[0].is_dir() else paths[0].parent
    chosen, ignored = split_names(select, "--select", "a rule"), split_names(ignore, "--ignore", "a rule")
    settings = find_settings(start, select=chosen, ignore=ignored, confidence=confidence)
    settings.check_names(RULES)
    if fix or unsafe_fixes or diff:
        num_mended = _mend(paths, settings, unsafe=unsafe_fixes, write=not diff)
        if diff:
            sys.exit(1 if num_mended else 0)
    report = lint_paths(paths, settings)
    if add_ignore or write_baseline is not None:
        _accept(report, write_baseline, add_ignore=add_ignore)
        return
    if baseline is not None:
        from rankwise.diagnose.lint.suppression import read_baseline, without_known

        report.findings = without_known(report.findings, read_baseline(baseline))
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(to_text(report, output_format, colours=colours))
    _print_failures(report, output_format)
    sys.exit(report.exitcode)


def _checklist(paths: list[Path], output_format: str) -> NoReturn:
    from rankwise.diagnose.lint import Settings, checklist_text, items_of, lint_paths

    report = lint_paths(paths, Settings(select=("ALL",), confidence="low"))
    print(checklist_text(items_of(report.findings), output_format))
    _print_failures(report, "json")
    sys.exit(report.exitcode)


def _mend(paths: list[Path], settings: Settings, *, unsafe: bool, write: bool) -> int:
    from rankwise.diagnose.lint.fixes import mend_paths

    num_mended = 0
    for path, text, number in mend_paths(paths, settings, unsafe=unsafe, write=write):
        num_mended += number
        if not write:
            print(text, end="")
        elif not number:
            _print_left(path)
    print(f"{num_mended} {'fixed' if write else 'would be fixed'}", file=sys.stderr)
    return num_mended


def _accept(report: Report, baseline: Path | None, *, add_ignore: bool) -> None:
    from rankwise.diagnose.lint.fixes import add_comments
    from rankwise.diagnose.lint.suppression import write_baseline

    if baseline is not None:
        print(f"{baseline}: {write_baseline(baseline, report.findings)} findings")
    if add_ignore:
        number, left = add_comments(report)
        for path in left:
            _print_left(path)
        print(f"comments added to {number} lines")
    _print_failures(report, "json")
    sys.exit(2 if report.failures else 0)


def _print_left(path: Path) -> None:
    print(f"rankwise: {path} is read-only and stays as it is", file=sys.stderr)


def _print_failures(report: Report, output_format: str) -> None:
    """Print failures to stderr for JSON, whose format is fixed; text and SARIF contain them."""
    if output_format == "json":
        for failure in report.failures:
            print(f"rankwise: {failure.file}:{failure.line}: {failure.message}", file=sys.stderr)
    if report.noqa_files:
        print(
            f"rankwise: {report.noqa_files[0]} suppresses rankwise rules with `noqa`; ruff removes these "
            'comments as unknown unless its configuration contains `external = ["RW"]` under [tool.ruff.lint]',
            file=sys.stderr,
        )


def rule_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[RULE]", help="Code or slug of a rule. Default: list all rules.")
    ] = None,
) -> None:
    """Explain a rule of `rankwise lint`: what it finds, why, and the fix. Without a name, list all rules."""
    from rankwise.diagnose.lint import RULES, rule_text

    if name is None:
        for rule in RULES:
            note = "" if rule.level != "info" and rule.confidence != "low" else "  (off)"
            print(f"{rule.code}  {rule.level:<7}  {rule.slug}{note}")
        return
    found = next((rule for rule in RULES if name.upper() == rule.code or name == rule.slug), None)
    if found is None:
        close = difflib.get_close_matches(name, [word for rule in RULES for word in (rule.code, rule.slug)], n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(f"no rule {name!r}{hint}; `rankwise rule` lists all rules")
    print(rule_text(found))
