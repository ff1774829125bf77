"""A single request to an object store, its checked answer, and the meaning of errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from rankwise.data.store.remote.options import Location
from rankwise.errors import DataError

__all__ = [
    "Failure",
    "FailureKind",
    "ObjectChangedError",
    "ObjectRequest",
    "Part",
    "TransferError",
    "TruncatedError",
    "classify",
    "send",
]


class TransferError(DataError):
    """The store could not be reached, did not answer in time, or refused. Says nothing about the data.

    Attributes:
        url: the object.
        attempts: how often it was tried.
        damage: False: a sample must not be skipped because of this.
    """

    damage = False

    def __init__(self, message: str, *, url: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.url = url
        self.attempts = attempts


class ObjectChangedError(DataError):
    """An object differs from the one seen before: it was replaced, truncated or deleted.

    Attributes:
        url: the object.
        damage: True: its content cannot be read, however often it is requested.
    """

    damage = True

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class TruncatedError(Exception):
    """An answer has another length than announced: it was truncated during transfer."""


FailureKind: TypeAlias = Literal["passing", "missing", "changed", "beyond", "no_ranges", "denied", "refused"]


class Failure(NamedTuple):
    """The meaning of an exception from a store.

    Attributes:
        kind: "passing" = try again; "missing" = there is no such object; "changed" = it is not the requested
            version; "beyond" = the range begins after its end; "no_ranges" = the server sends whole objects only;
            "denied" = not with these credentials; "refused" = any other answer that will not change.
        reason: what happened, in short.
        mend: how to fix it, "" if unknown.
    """

    kind: FailureKind
    reason: str
    mend: str = ""


_PASSING_STATUS = (408, 425, 429)
_LASTING_STATUS = (501, 505)
_CREDENTIALS = (
    'set keys in the environment or in RemoteOptions.store; for public data: RemoteOptions(store={"anonymous": True})'
)
_RENEW = "renew the temporary keys, or let a credential_provider in RemoteOptions.store do it"
# of codes of S3, which answers 400 or 403 for them
_MENDS = {
    "ExpiredToken": _RENEW,
    "TokenRefreshRequired": _RENEW,
    "InvalidToken": "AWS_SESSION_TOKEN does not belong to the keys: set all three, or none",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "AuthorizationHeaderMalformed": "check the region",
    "InvalidObjectState": "the object is archived: restore it, or copy it to another storage class",
}


def classify(error: BaseException) -> Failure:
    """Return the meaning of an exception that obstore raised."""
    if isinstance(error, TruncatedError):
        return Failure("passing", f"the response was truncated: {error}")
    text = str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return Failure("refused", "no such bucket or container", "check its name, the endpoint and the region")
    if isinstance(error, FileNotFoundError):
        return Failure("missing", "no such object")
    return _by_type(type(error).__name__, text) or _by_place(text) or _by_status(text) or _by_kind(text)


def _by_type(name: str, text: str) -> Failure | None:
    if name == "PreconditionError":
        return Failure("changed", "it was replaced after it was opened")
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(text)
    if name == "NotSupportedError":
        return Failure("no_ranges", "the server does not support range requests for it")
    return None


def _by_place(text: str) -> Failure | None:
    # the addresses where cloud machines get credentials: tried last, if no other source gave any
    if "169.254." in text or "metadata.google.internal" in text:
        return Failure("denied", "no credentials were found", _CREDENTIALS)
    if "LocalFileSystem" in text or "InMemory" in text:
        return _local(text)
    return None


def _denied(text: str) -> Failure:
    mend = _mend(text) or _CREDENTIALS
    if "<Code>AccessDenied</Code>" in text:
        mend += "; S3 also answers this way for objects that do not exist when listing the bucket is not allowed"
    return Failure("denied", _status(text) or "access is denied", mend)


def _local(text: str) -> Failure:
    if "StartTooLarge" in text:
        return Failure("beyond", "it ends before the range begins")
    # a path below a file: treated like a missing path
    kind: FailureKind = "missing" if "NotADirectory" in text else "refused"
    return Failure(kind, _first_line(text))


def _by_status(text: str) -> Failure | None:
    found = re.search(r"status code: (\d{3})", text)
    if found is None:
        return None
    status = int(found[1])
    if status == 416:
        return Failure("beyond", "it ends before the range begins")
    passing = status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS)
    mend = "send fewer requests at once: lower RemoteOptions.concurrency" if status in (429, 503) else _mend(text)
    return Failure("passing" if passing else "refused", _status(text), mend)


def _mend(text: str) -> str:
    code = re.search(r"<Code>(\w+)</Code>", text)
    return "" if code is None else _MENDS.get(code[1], "")


def _by_kind(text: str) -> Failure:
    if "NotPartial" in text:
        return Failure("no_ranges", "the server does not support range requests for it")
    if "redirect" in text:
        return Failure("refused", "the store redirects to another location", "check the endpoint and the region")
    if re.search(r"certificate|UnknownIssuer", text):
        return Failure("refused", _first_line(text), 'its certificate is not trusted: store={"root_certificate": ...}')
    found = re.search(r"kind: (Timeout|Interrupted|Connect|Request|Decode),", text)
    if found is not None:
        return Failure("passing", _network_reason(found[1], text))
    if "UnexpectedRange" in text:
        return Failure("passing", _first_line(text))
    return Failure("refused", _first_line(text))


def _network_reason(kind: str, text: str) -> str:
    if kind == "Timeout":
        return "no response in time"
    system = re.search(r'message: "([^"]*)"', text)
    if "IncompleteBody" in text or kind == "Interrupted":
        return f"the connection ended in the middle of the response{f' ({system[1]})' if system else ''}"
    if kind == "Connect":
        return f"no connection{f' ({system[1]})' if system else ''}"
    return _first_line(text)


def _status(text: str) -> str:
    """Return "503 Service Unavailable (SlowDown)" from the text of an error."""
    status = re.search(r"status code: (\d{3}[^:\n]*)", text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    return (status[1].strip() if status else "") + (f" ({code[1]})" if code else "")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRequest:
    """A request for one object.

    Attributes:
        url: the object.
        start: first byte; negative counts from the end, and `length` is then None.
        length: number of bytes, fewer if the object ends before; None = up to the end.
        etag: the version that it must still have; None = any.
        body: False requests only size and version.
    """

    url: str
    start: int = 0
    length: int | None = None
    etag: str | None = None
    body: bool = True

    @property
    def is_part(self) -> bool:
        """Whether it requests a part of the object."""
        return self.body and (self.start != 0 or self.length is not None)

    @property
    def span(self) -> str:
        """The requested bytes, in words."""
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
        etag: identifies the version of the object; opaque. None if the store has no versions.
    """

    data: memoryview
    size: int
    etag: str | None


def send(store: Any, location: Location, request: ObjectRequest) -> Part:
    """Send one request, once.

    Raises:
        ObjectChangedError: the object is not the requested version.
        TruncatedError: the answer was truncated.
        Exception: any error of obstore.
    """
    import obstore

    if not request.body:
        meta = obstore.head(store, location.path)
        data = memoryview(b"")
    else:
        result = obstore.get(store, location.path, options=_options(request))  # type: ignore[arg-type]
        meta, (first, last) = result.meta, result.range
        data = memoryview(result.bytes())
        if data.nbytes != last - first:
            raise TruncatedError(f"{data.nbytes} bytes arrived, but {last - first} were announced")
    part = Part(data, int(meta["size"]), _version(meta))
    if request.etag is not None and part.etag is not None and part.etag != request.etag:
        raise ObjectChangedError(_replaced(request, part), url=request.url)
    return part


def _options(request: ObjectRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.start < 0:
        options["range"] = {"suffix": -request.start}
    elif request.length is not None:
        options["range"] = (request.start, request.start + request.length)
    elif request.start > 0:
        options["range"] = {"offset": request.start}
    # a weak tag never matches here (RFC 9110, 13.1.1); it is compared with that of the answer
    if request.etag is not None and request.etag.startswith('"'):
        options["if_match"] = request.etag
    return options


def _version(meta: Any) -> str | None:
    tag = meta["e_tag"]
    if tag:
        return str(tag)
    # servers without entity tags: modification time and size stand for the version
    return f"{meta['last_modified'].isoformat()} {meta['size']}"


def _replaced(request: ObjectRequest, part: Part) -> str:
    return (
        f"{request.url} was replaced while it was open: its version was {request.etag}, now {part.etag} "
        f"({part.size} bytes). Reopen the data, and do not write to data while they are read"
    )
