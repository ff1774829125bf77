"""One request: what is asked of an object, and the answer, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rankwise.data.store.remote.trouble import ObjectChangedError, TruncatedError
from rankwise.data.store.remote.urls import Location

__all__ = ["Ask", "Part", "send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of one object.

    Attributes:
        url: the object.
        start: its first byte; negative counts from the end, and `length` is then None.
        length: number of bytes, fewer where the object ends; None = up to the end.
        etag: the version that it must still have; None = any.
        body: False asks for size and version only.
    """

    url: str
    start: int = 0
    length: int | None = None
    etag: str | None = None
    body: bool = True

    @property
    def is_part(self) -> bool:
        """Whether a part of the object is wanted."""
        return self.body and (self.start != 0 or self.length is not None)

    @property
    def span(self) -> str:
        """Which bytes, in words."""
        if not self.body:
            return "its size"
        if self.start < 0:
            return f"the last {-self.start} bytes"
        if self.length is None:
            return f"the bytes from {self.start} on" if self.start else "the whole object"
        return f"bytes {self.start} to {self.start + self.length - 1}"


class Part(NamedTuple):
    """A part of an object.

    Attributes:
        data: its bytes.
        size: bytes of the whole object.
        etag: names the version of the object; opaque. None if the store does not tell versions apart.
    """

    data: memoryview
    size: int
    etag: str | None


def send(store: Any, location: Location, ask: Ask) -> Part:
    """Send one request, once.

    Raises:
        ObjectChangedError: the object is not the version that was asked for.
        TruncatedError: the answer was cut.
        Exception: whatever obstore raises.
    """
    import obstore

    if not ask.body:
        meta = obstore.head(store, location.path)
        data = memoryview(b"")
    else:
        result = obstore.get(store, location.path, options=_options(ask))  # type: ignore[arg-type]
        meta, (first, last) = result.meta, result.range
        data = memoryview(result.bytes())
        if data.nbytes != last - first:
            raise TruncatedError(f"{data.nbytes} bytes came where {last - first} were announced")
    part = Part(data, int(meta["size"]), _version(meta))
    if ask.etag is not None and part.etag is not None and part.etag != ask.etag:
        raise ObjectChangedError(_replaced(ask, part), url=ask.url)
    return part


def _options(ask: Ask) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if ask.start < 0:
        options["range"] = {"suffix": -ask.start}
    elif ask.length is not None:
        options["range"] = (ask.start, ask.start + ask.length)
    elif ask.start > 0:
        options["range"] = {"offset": ask.start}
    # a weak tag never matches here (RFC 9110, 13.1.1); it is compared with the one of the answer
    if ask.etag is not None and ask.etag.startswith('"'):
        options["if_match"] = ask.etag
    return options


def _version(meta: Any) -> str | None:
    tag = meta["e_tag"]
    if tag:
        return str(tag)
    # servers without entity tags: the time of the last change and the size stand for the version
    return f"{meta['last_modified'].isoformat()} {meta['size']}"


def _replaced(ask: Ask, part: Part) -> str:
    return (
        f"{ask.url} was replaced while it was open: its version was {ask.etag}, now it is {part.etag} "
        f"({part.size} bytes). Open the data again, and do not write to data that are being read"
    )
