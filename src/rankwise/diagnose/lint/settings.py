"""Which rules are asked, and where: options of the command over ``[tool.rankwise.lint]`` of pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rankwise.diagnose.lint.record import Confidence, Finding, Rule
from rankwise.errors import ConfigError

_CONFIDENCES: dict[Confidence, int] = {"high": 2, "medium": 1, "low": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is checked.

    Attributes:
        select: codes, prefixes of codes or slugs; those asked. Empty: all that are not info. "ALL": info, too.
        ignore: the same; those not asked, which counts more than `select`.
        confidence: the lowest that is shown: "high", "medium" or "low".
        exclude: patterns of files and folders that a walk leaves out.
        per_file_ignores: pattern of a file -> what is ignored there.
        report_unused: whether comments that suppress nothing are reported.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = field(default_factory=dict)
    report_unused: bool = True

    def __post_init__(self) -> None:
        if self.confidence not in _CONFIDENCES:
            raise ConfigError(f"confidence wants high, medium or low, got {self.confidence!r}")

    def check_names(self, rules: Iterable[Rule]) -> None:
        """Refuse names that no rule has.

        Raises:
            ConfigError: one of them matches nothing.
        """
        known = tuple(rules)
        listed = [*self.select, *self.ignore, *(name for names in self.per_file_ignores.values() for name in names)]
        for name in listed:
            if not any(matches(rule, name) for rule in known):
                raise ConfigError(
                    f"no rule is called {name!r}; `rankwise rule` lists codes and slugs, prefixes of codes work"
                )

    def rules_for(self, path: str, rules: Iterable[Rule]) -> list[Rule]:
        """Return the rules that are asked about a file."""
        ignored = [*self.ignore]
        for pattern, names in self.per_file_ignores.items():
            if fnmatch(path, pattern) or fnmatch(Path(path).name, pattern) or fnmatch(path, f"*/{pattern}"):
                ignored += names
        return [
            rule
            for rule in rules
            if (any(matches(rule, name) for name in self.select) if self.select else rule.level != "info")
            and not any(matches(rule, name) for name in ignored)
        ]

    def wants(self, finding: Finding) -> bool:
        """Whether a finding is sure enough to be shown; one that was selected by its full name always is."""
        named = finding.rule.code in self.select or finding.rule.slug in self.select
        return named or _CONFIDENCES[finding.confidence] >= _CONFIDENCES[self.confidence]


def matches(rule: Rule, name: str) -> bool:
    """Whether a code, a prefix of one, a slug or ``ALL`` means a rule."""
    return name in {"ALL", rule.slug} or (name.startswith("RW") and rule.code.startswith(name))


def find_settings(start: Path, **given: Any) -> Settings:
    """Read the settings of the nearest pyproject.toml that has them, under those given on the command line.

    Args:
        start: a file or folder; it and the folders around it are looked at.
        given: fields of `Settings`; None leaves one as it is in the file.

    Raises:
        ConfigError: the table has a key that is not known, or a value of another type.
    """
    found = Settings()
    for folder in [start, *start.resolve().parents]:
        path = folder / "pyproject.toml"
        if path.is_file():
            table = _table(path)
            if table is not None:
                found = _read(table, path)
                break
    return replace(found, **{name: value for name, value in given.items() if value is not None})


def _table(path: Path) -> dict[str, Any] | None:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    table = content.get("tool", {}).get("rankwise", {}).get("lint")
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.rankwise.lint wants a table, got {type(table).__name__}")
    return table


def _read(table: dict[str, Any], path: Path) -> Settings:
    known = {spec.name.replace("_", "-"): spec.name for spec in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: tool.rankwise.lint has no key {key!r}; it knows {', '.join(sorted(known))}")
        values[known[key]] = _checked(key, value, path)
    return Settings(**values)


def _checked(key: str, value: Any, path: Path) -> Any:
    place = f"{path}: tool.rankwise.lint.{key}"
    if key == "confidence":
        return value
    if key == "report-unused":
        if not isinstance(value, bool):
            raise ConfigError(f"{place} wants true or false, got {value!r}")
        return value
    if key == "per-file-ignores":
        if not isinstance(value, dict):
            raise ConfigError(f"{place} wants a table of pattern = [codes], got {value!r}")
        return {pattern: _names(names, f"{place}.{pattern}") for pattern, names in value.items()}
    return _names(value, place)


def _names(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{place} wants a list of strings, got {value!r}")
    return tuple(value)
