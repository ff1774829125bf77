"""From a URL to the store that holds it and the path inside."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from rankwise.errors import ConfigError

__all__ = ["Location", "locate", "understands_url"]

_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
    "file": "file",
    "memory": "memory",
}


class Location(NamedTuple):
    """Where an object lies.

    Attributes:
        kind: "s3", "gs", "az", "http", "file" or "memory".
        root: URL of the store: scheme and bucket, container or host.
        path: path inside the store, not percent-encoded; "" is the store itself.
    """

    kind: str
    root: str
    path: str


def locate(url: str) -> Location:
    """Split a URL into its store and the path inside.

    Paths of s3, gs, az, file and memory URLs are taken as they stand; those of http(s) are percent-encoded, as in a
    browser. Slashes at the end mean nothing.

    Raises:
        ConfigError: the scheme is unknown, the bucket or host is missing, or the URL holds a query, a fragment, a
            password, or a path with "", "." or ".." in it.
    """
    scheme, _, rest = url.partition("://")
    kind = _SCHEMES.get(scheme.lower())
    if kind is None:
        raise ConfigError(f"{url!r} is no URL of a store; wanted one that begins with {', '.join(_SCHEMES)} and ://")
    bucket, _, path = rest.partition("/")
    if not bucket and kind not in ("file", "memory"):
        raise ConfigError(f"{url!r} names no bucket, container or host: wanted {scheme}://NAME/path")
    if kind == "http":
        _check_http(scheme, bucket, path)
        path = unquote(path)
    path = path.rstrip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ConfigError(
            f"{url!r} has an empty part, or a part . or .. in its path, which object stores do not resolve"
        )
    return Location(kind, f"{scheme.lower()}://{bucket}", path)


def understands_url(url: str) -> bool:
    """Whether the scheme of a URL is one that `locate` knows."""
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme.lower() in _SCHEMES


def _check_http(scheme: str, host: str, path: str) -> None:
    # such a URL may hold a secret: the message does not repeat it
    where = f"{scheme}://{host.rpartition('@')[2]}/..."
    if "@" in host:
        raise ConfigError(
            f"the URL {where} holds a user name or password: "
            'give them as store={"default_headers": {"authorization": ...}}'
        )
    if "?" in path or "#" in path:
        raise ConfigError(
            f"the URL {where} has a query or a fragment, to which names of chunks cannot be appended: "
            "give the token in the options of the store (for buckets use s3://, gs:// or az://)"
        )
