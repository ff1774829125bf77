"""Connections to stores: one per bucket and options, shared by the readers of a process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rankwise.data.store.remote.options import Location, RemoteOptions, locate
from rankwise.errors import ConfigError, WorldError, needs_extra

if TYPE_CHECKING:
    from obstore.store import MemoryStore

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
_KINDS = ("s3", "gs", "az", "http", "file", "memory")

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
    key = (location.root, options.retry_deadline_s, *map(_frozen, (client, config, environment)))
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
    if location.root.startswith("http:") or _endpoint(location, given).startswith("http:"):
        client["allow_http"] = True
    client.update({name: value for name, value in given.items() if name in _CLIENT_OPTIONS})
    config = {name: value for name, value in given.items() if name not in _CLIENT_OPTIONS}
    if "anonymous" in config:
        config["skip_signature"] = config.pop("anonymous")
    return client, {} if location.kind in ("http", "file") else config


def _endpoint(location: Location, given: Mapping[str, Any]) -> str:
    if "endpoint" in given or location.kind != "s3":
        return str(given.get("endpoint", ""))
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _frozen(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in values.items()))
