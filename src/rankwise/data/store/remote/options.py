"""Options and URLs of object stores, counts of requests, and connections: one per bucket and options in a process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from rankwise.data.store.stats import Summed
from rankwise.errors import ConfigError, WorldError, needs_extra

if TYPE_CHECKING:
    from obstore.store import MemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Options for requests to object stores, of one reader on one rank.

    Attributes:
        concurrency: requests in flight at once.
        timeout_s: an attempt is given up if no byte arrives for this time.
        connect_timeout_s: an attempt is given up if no connection is made within this time.
        retries: further attempts after a temporary error.
        retry_deadline_s: no attempt begins later than this after the first; no single attempt takes longer either.
        backoff_s: longest wait before the first retry; it doubles with each one. The wait is drawn from the upper half
            of this time, so that ranks which failed together do not return together.
        max_backoff_s: longest wait before any retry.
        coalesce_gap_bytes: two ranges of an object become one request if at most this many bytes lie between them.
        max_read_bytes: size limit for a request that joins ranges.
        store: options of the store, passed on to obstore: ``endpoint``, ``region``, ``anonymous``,
            ``access_key_id``, ``account_name``, ``credential_provider``, ``allow_http``, ``proxy_url``, ... A key that
            is a scheme ("s3", "gs", "az", "http") has a mapping of options for URLs of that scheme only. Never shown.

    Raises:
        ConfigError: a number is out of range, or `store` is not a mapping of names.
    """

    concurrency: int = 32
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    retries: int = 8
    retry_deadline_s: float = 120.0
    backoff_s: float = 0.1
    max_backoff_s: float = 10.0
    coalesce_gap_bytes: int = 256 * 2**10
    max_read_bytes: int = 8 * 2**20
    # it may contain keys and tokens, which must not reach a log through a repr
    store: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_read_bytes"):
            self._settle(name, at_least=1)
        for name in ("retries", "coalesce_gap_bytes", "backoff_s", "max_backoff_s"):
            self._settle(name, at_least=0)
        for name in ("timeout_s", "connect_timeout_s", "retry_deadline_s"):
            self._settle(name, at_least=0.001)
        if not isinstance(self.store, Mapping) or not all(isinstance(name, str) for name in self.store):
            raise ConfigError(
                'RemoteOptions.store must be a mapping from names to values, such as {"region": "eu-west-1"}'
            )

    def _settle(self, name: str, *, at_least: float) -> None:
        value = getattr(self, name)
        if not isinstance(value, Real) or isinstance(value, bool) or not float(value) >= at_least:
            raise ConfigError(f"RemoteOptions.{name} must be a number >= {at_least}; got {value!r}")
        if not name.endswith("_s") and not isinstance(value, Integral):
            raise ConfigError(f"RemoteOptions.{name} must be an integer; got {value!r}")
        object.__setattr__(self, name, float(value) if name.endswith("_s") else round(value))  # not NumPy's


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStats(Summed):
    """Counts of requests to object stores since a reader was opened.

    Attributes:
        requests: requests sent, each attempt counted.
        retries: attempts after a first one.
        failures: requests that were given up (a missing object is an answer, not a failure).
        wanted_bytes: bytes requested and delivered.
        fetched_bytes: bytes transferred for them; exceeds `wanted_bytes` by the gaps between ranges.
        request_s: seconds spent in requests, summed over concurrent ones.
        backoff_s: seconds spent waiting before retries, summed likewise.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    wanted_bytes: int = 0
    fetched_bytes: int = 0
    request_s: float = 0.0
    backoff_s: float = 0.0


_KINDS = ("s3", "gs", "az", "http", "file", "memory")
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az", "adl": "az", "abfs": "az", "abfss": "az", "https": "http"}
_SCHEMES = dict(zip(_KINDS, _KINDS, strict=True)) | _ALIASES


class Location(NamedTuple):
    """The location of an object.

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

    Paths of s3, gs, az, file and memory URLs are used literally; those of http(s) are percent-encoded, as in a
    browser. Trailing slashes are ignored.

    Raises:
        ConfigError: the scheme is unknown, the bucket or host is missing, or the URL holds a query, a fragment, a
            password, or a path with "", "." or ".." in it.
    """
    scheme, _, rest = url.partition("://")
    kind = _SCHEMES.get(scheme.lower())
    if kind is None:
        raise ConfigError(f"{url!r} is not the URL of a store; it must begin with {', '.join(_SCHEMES)} and ://")
    bucket, _, path = rest.partition("/")
    if not bucket and kind not in ("file", "memory"):
        raise ConfigError(f"{url!r} names no bucket, container or host: expected {scheme}://NAME/path")
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
    """Whether `locate` supports the scheme of a URL."""
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme.lower() in _SCHEMES


def _check_http(scheme: str, host: str, path: str) -> None:
    # such a URL may contain a secret: the message does not repeat it
    where = f"{scheme}://{host.rpartition('@')[2]}/..."
    if "@" in host:
        raise ConfigError(
            f"the URL {where} contains a user name or password: "
            'pass them as store={"default_headers": {"authorization": ...}}'
        )
    if "?" in path or "#" in path:
        raise ConfigError(
            f"the URL {where} has a query or a fragment, so chunk names cannot be appended: "
            "pass the token in the store options (for buckets use s3://, gs:// or az://)"
        )


_MOST_STORES = 64
# obstore separates these from the options of a store
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)

# Also held while a store is opened: readers that start together would each connect. Requests run without it, because
# obstore's stores allow many threads; an evicted store lives as long as its users.
_lock = threading.Lock()
_stores: OrderedDict[Any, Any] = OrderedDict()
_memory: dict[str, MemoryStore] = {}
_first_pid: dict[str, int] = {}  # pid of the first process that used obstore


def load_obstore() -> ModuleType:
    """Return the obstore module.

    Raises:
        MissingExtraError: it is not installed.
        WorldError: this process was forked from one that used it; its network threads do not exist here.
    """
    with needs_extra("reading from object stores needs obstore: pip install 'rankwise[remote]'"):
        import obstore
        import obstore.store
    # setdefault is atomic, so no lock: in a forked child a thread of the parent may hold `_lock` for ever. `_lock` is
    # only taken after this check, so no child ever waits for it.
    first = _first_pid.setdefault("pid", os.getpid())
    if first != os.getpid():
        raise WorldError(
            f"process {os.getpid()} was forked from process {first}, which had read from an object store: "
            "its network threads do not exist here, so a request would wait forever. Start workers with the "
            'method "spawn" or "forkserver", or open object stores in the workers only'
        )
    return obstore


def open_store(location: Location, options: RemoteOptions) -> Any:
    """Return obstore's store for a location. Its own retries are off: ours are counted and explained.

    Raises:
        ConfigError: the store does not know an option, or a required one is missing.
        MissingExtraError: obstore is not installed.
        WorldError: this process was forked from one that read from object stores.
    """
    load_obstore()
    if location.kind == "memory":
        return memory_store(location.root)
    client, config = _arguments(location, options)
    # what stores read there; a user may fix it in a running notebook
    environment = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    parts = [
        repr(sorted((name, repr(value)) for name, value in part.items())) for part in (client, config, environment)
    ]
    key = (location.root, options.retry_deadline_s, *parts)
    with _lock:
        if key in _stores:
            _stores.move_to_end(key)
            return _stores[key]
        store = _stores[key] = _connect(location, client, config)
        if len(_stores) > _MOST_STORES:
            _stores.popitem(last=False)
        return store


def memory_store(url: str) -> MemoryStore:
    """Return the store in this process's memory for URLs that begin with this one (``memory://NAME``)."""
    load_obstore()
    from obstore.store import MemoryStore

    root = locate(url).root
    with _lock:
        return _memory.setdefault(root, MemoryStore())


def _connect(location: Location, client: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    from obstore.store import LocalStore, from_url

    if location.kind == "file":
        return LocalStore()
    arguments: dict[str, Any] = {
        **config,
        "client_options": dict(client),
        "retry_config": {"max_retries": 0},
    }
    try:
        return from_url(location.root, **arguments)
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise ConfigError(
            f"cannot open a store for {location.root} with the options {sorted({*client, *config})}: {text}"
        ) from error


def _arguments(location: Location, options: RemoteOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of the connection, and of the store."""
    given = {name: value for name, value in options.store.items() if name not in _KINDS}
    given.update(options.store.get(location.kind, {}))
    client: dict[str, Any] = {
        # progress within timeout_s; a whole attempt, however steadily it transfers, within the deadline
        "read_timeout": timedelta(seconds=options.timeout_s),
        "timeout": timedelta(seconds=options.retry_deadline_s),
        "connect_timeout": timedelta(seconds=options.connect_timeout_s),
    }
    # a URL with http:// allows it
    own = "AWS_ENDPOINT_URL_S3" if os.environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    endpoint = str(given.get("endpoint", os.environ.get(own, "") if location.kind == "s3" else ""))
    if location.root.startswith("http:") or endpoint.startswith("http:"):
        client["allow_http"] = True
    client.update({name: value for name, value in given.items() if name in _CLIENT_OPTIONS})
    config = {name: value for name, value in given.items() if name not in _CLIENT_OPTIONS}
    if "anonymous" in config:
        config["skip_signature"] = config.pop("anonymous")
    return client, {} if location.kind in ("http", "file") else config
