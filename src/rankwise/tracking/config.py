"""A run's configuration as JSON: validated when it is recorded, compared when the run is resumed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rankwise.data.contract import JSON
from rankwise.errors import ConfigError

_ABSENT = object()
_MASK = "***"
# Words that always name a secret. "key" and "token" also occur in names of models and data (label_key, pad_token):
# "key" counts only after one of its companions, "token" only if none of its companions comes before it.
_SECRETS = {"secret", "password", "passwd", "pwd", "passphrase", "credential", "cred", "authorization", "jwt"}
_KEYS = {"api", "access", "secret", "private", "encryption", "signing", "account", "auth", "ssh", "license", "service"}
_TOKENS = {"pad", "bos", "eos", "sep", "cls", "unk", "mask", "stop", "start", "end", "special", "image", "prefix"}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_OPTION = re.compile(r"(?P<name>[-+]{0,2}[A-Za-z][\w.\-]*)=(?P<value>.+)", re.DOTALL)
_IN_URL = re.compile(
    r"(?<=://)([^/\s:@]*):[^/\s@]+(?=@)|(?<=[?&])([\w-]*(?:sig|signature|token|key|secret)=)[^&\s]+", re.IGNORECASE
)


def as_json(value: Any, *, what: str, place: str = "") -> JSON:
    """Return `value` as JSON would be read back: tuples become lists, everything else must already be JSON.

    Args:
        value: mapping, list, tuple, string, finite number, bool or None.
        what: name of the whole value, for the message.
        place: dotted key of `value` inside it.

    Raises:
        ConfigError: a part is not JSON; the message names its key.
    """
    where = place or "the top level"
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{what}: {where} is {value}, which JSON cannot hold; use None or a string")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{what}: {where} has the key {key!r}; JSON keys are strings")
        return {key: as_json(item, what=what, place=f"{place}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item, what=what, place=f"{place}[{index}]") for index, item in enumerate(value)]
    raise ConfigError(
        f"{what}: {where} is a {type(value).__name__}; JSON holds numbers, strings, bools, None, lists and dicts: "
        "convert it (str(...) of a path, .item() of an array)"
    )


def describe_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, may_change: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Compare two configurations.

    Args:
        old: the recorded configuration.
        new: the current configuration.
        may_change: dotted keys that may differ in one run; one that exists on one side only is not reported.

    Returns:
        One line per differing key, ``key: old -> new``, dotted and sorted: for keys that must be equal, and for keys in
        `may_change`.
    """
    before, after = flat(old), flat(new)
    refused, noted = [], []
    for key in sorted({*before, *after}):
        left, right = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if _show(left) == _show(right):
            continue
        line = f"{key}: {_show(left)} -> {_show(right)}"
        if key not in may_change:
            refused.append(line)
        elif left is not _ABSENT and right is not _ABSENT:
            noted.append(line)
    return refused, noted


def masked(value: Any, *, name: str = "") -> Any:
    """Return JSON with secrets as ``***``: text under a key that names a secret, after such an option, or in a URL.

    Args:
        value: JSON; a list of text is also parsed as a command line (``--api-key=...``, ``--api-key ...``).
        name: key of the value.
    """
    if isinstance(value, Mapping):
        return {key: masked(item, name=name if _is_secret(name) else key) for key, item in value.items()}
    if isinstance(value, str):
        return _MASK if value and _is_secret(name) else _masked_text(value)
    return _masked_list(value, name) if isinstance(value, Sequence) else value


def _masked_list(items: Sequence[Any], name: str) -> list[Any]:
    shown: list[Any] = []
    for index, item in enumerate(items):
        before = items[index - 1] if index else None
        follows = isinstance(before, str) and before.startswith("-") and _is_secret(before, option=True)
        hidden = follows and isinstance(item, str) and not item.startswith("-")
        shown.append(_MASK if hidden else masked(item, name=name))
    return shown


def _masked_text(text: str) -> str:
    option = _OPTION.fullmatch(text)
    if option is not None and _is_secret(option["name"], option=True):
        return f"{option['name']}={_MASK}"
    return _IN_URL.sub(lambda found: f"{found[1]}:{_MASK}" if found[2] is None else f"{found[2]}{_MASK}", text)


def _is_secret(name: str, *, option: bool = False) -> bool:
    *before, last = _HUMP.sub("_", name).strip("_").lower().split("_")
    if last == "token":
        return not before or before[-1] not in _TOKENS
    if last in ("key", "keys"):
        return (option and not before) or bool(before and before[-1] in _KEYS)
    return not _SECRETS.isdisjoint(word.removesuffix("s") for word in (*before, last)) or last.endswith(
        ("apikey", "accesskey", "secretkey")
    )


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted key; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return found


def _show(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)
