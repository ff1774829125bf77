"""What lies directly below a URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from rankwise.data.store.remote.attempts import BeyondError, NoRangesError, Requests
from rankwise.data.store.remote.trouble import TransferError
from rankwise.data.store.remote.urls import Location, locate

__all__ = ["Listing", "list_below"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies directly below a URL; empty if nothing does, for object stores know no empty folders.

    Attributes:
        folders: URLs below which there is more, sorted.
        objects: URLs of objects, sorted.
    """

    folders: tuple[str, ...]
    objects: tuple[str, ...]


def list_below(requests: Requests, url: str) -> Listing:
    """Return what lies directly below a URL.

    Raises:
        ConfigError: the URL cannot work.
        TransferError: the store could not be reached, refused, or has no listings (most web servers).
    """
    location = locate(url)
    store = requests.store(location)
    try:
        found = requests.run(lambda: store.list_with_delimiter(location.path or None), url=url, what="a listing")
    except (NoRangesError, BeyondError) as error:
        raise TransferError(f"{url}: the server has no listings", url=url) from error
    except TransferError as error:
        if location.kind != "http":
            raise
        raise TransferError(
            f"{url}: a plain web server has no listings that object stores understand; name the arrays one by one "
            f"({error})",
            url=url,
        ) from error
    if found is None:
        return Listing(folders=(), objects=())
    return Listing(
        folders=tuple(sorted(_url(location, path) for path in found["common_prefixes"])),
        objects=tuple(sorted(_url(location, meta["path"]) for meta in found["objects"])),
    )


def _url(location: Location, path: str) -> str:
    return f"{location.root}/{quote(path) if location.kind == 'http' else path}"
