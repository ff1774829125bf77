"""A baseline: the findings of old code, known and not reported again; new ones are."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rankwise._files import write_named
from rankwise.diagnose.lint.record import Finding
from rankwise.errors import ConfigError

_VERSION = 1


def fingerprint(finding: Finding) -> str:
    """Return what identifies a finding while lines move: its file, code and the text of its line."""
    text = "\0".join((Path(finding.file).as_posix(), finding.rule.code, " ".join(finding.source_line.split())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_baseline(path: Path, findings: Iterable[Finding]) -> int:
    """Write the findings into a file; return how many.

    Raises:
        ConfigError: the file cannot be written.
    """
    counts: Counter[tuple[str, str, str]] = Counter(
        (Path(found.file).as_posix(), found.rule.code, fingerprint(found)) for found in findings
    )
    entries = [
        {"file": file, "code": code, "fingerprint": mark, "count": counts[file, code, mark]}
        for file, code, mark in sorted(counts)
    ]
    try:
        write_named(path, (json.dumps({"version": _VERSION, "findings": entries}, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"the baseline {str(path)!r} cannot be written: {error.strerror}") from error
    return sum(counts.values())


def read_baseline(path: Path) -> Counter[str]:
    """Read how often each fingerprint is known.

    Raises:
        ConfigError: there is no such file, or it is no baseline of this version.
    """
    try:
        content = json.loads(path.read_bytes())
        version, entries = content["version"], content["findings"]
        known = Counter({entry["fingerprint"]: int(entry["count"]) for entry in entries if version == _VERSION})
    except FileNotFoundError:
        raise ConfigError(f"no baseline {str(path)!r}; `--write-baseline` makes it") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = f"is no baseline, as `--write-baseline` makes it: {type(error).__name__}: {error}"
        raise ConfigError(f"{path} {what}") from None
    if version != _VERSION:
        raise ConfigError(f"{path} is a baseline of version {version}, wanted {_VERSION}: write it anew")
    return known


def without_known(findings: Iterable[Finding], known: Counter[str]) -> list[Finding]:
    """Return the findings that a baseline does not hold; of equal ones, those beyond its count."""
    left = Counter(known)
    kept = []
    for finding in findings:
        mark = fingerprint(finding)
        if left[mark]:
            left[mark] -= 1
        else:
            kept.append(finding)
    return kept
