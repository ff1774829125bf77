"""A single request to an object store, its checked answer, and the meaning of errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from rankwise.data.store.remote.options import Location
from rankwise.errors import DataError


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


class BeyondError(ObjectChangedError):
    """The object ends before the range begins."""


class NoRangesError(TransferError):
    """The server does not support this kind of range."""


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


_CREDENTIALS = (
    'set keys in the environment or in RemoteOptions.store; for public data: RemoteOptions(store={"anonymous": True})'
)
_LOCATION = "check its name, the endpoint and the region"
_UNLISTED = (
    f"{_CREDENTIALS}; S3 also answers this way for objects that do not exist when listing the bucket is not allowed"
)
_UNTRUSTED = 'its certificate is not trusted: store={"root_certificate": ...}'
_FEWER = "send fewer requests at once: lower RemoteOptions.concurrency"
_DENIED = "^(PermissionDenied|Unauthenticated)Error: "

# Patterns in the class and the text of an error, and what they mean: the first that is found.
_MEANINGS: tuple[tuple[str, FailureKind, str, str], ...] = (
    ("NoSuchBucket|ContainerNotFound", "refused", "no such bucket or container", _LOCATION),
    ("^FileNotFoundError: ", "missing", "no such object", ""),
    ("^PreconditionError: ", "changed", "it was replaced after it was opened", ""),
    (f"(?s){_DENIED}.*<Code>AccessDenied</Code>", "denied", "{status}", _UNLISTED),
    (_DENIED, "denied", "{status}", _CREDENTIALS),
    ("^NotSupportedError: |NotPartial", "no_ranges", "the server does not support range requests for it", ""),
    # the addresses where cloud machines get credentials: tried last, if no other source gave any
    (r"169\.254\.|metadata\.google\.internal", "denied", "no credentials were found", _CREDENTIALS),
    ("StartTooLarge|status code: 416", "beyond", "it ends before the range begins", ""),
    ("kind: NotADirectory", "missing", "{first}", ""),  # a path below a file: treated like a missing path
    ("LocalFileSystem|InMemory", "refused", "{first}", ""),
    ("status code: (429|503)", "passing", "{status}", _FEWER),
    ("status code: (408|425|5(?!01|05))", "passing", "{status}", ""),
    (r"status code: \d{3}", "refused", "{status}", ""),
    ("redirect", "refused", "the store redirects to another location", "check the endpoint and the region"),
    ("certificate|UnknownIssuer", "refused", "{first}", _UNTRUSTED),
    ("kind: Timeout,", "passing", "no response in time", ""),
    ("kind: Interrupted,|IncompleteBody", "passing", "the connection ended in the middle of the response{cause}", ""),
    ("kind: Connect,", "passing", "no connection{cause}", ""),
    ("kind: (Request|Decode),|UnexpectedRange", "passing", "{first}", ""),
    ("", "refused", "{first}", ""),
)

_RENEW = "renew the temporary keys, or let a credential_provider in RemoteOptions.store do it"
# what mends the codes of S3, which answers 400 or 403 for them
_CODE_MENDS = {
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
    name, text = "FileNotFoundError" if isinstance(error, FileNotFoundError) else type(error).__name__, str(error)
    kind, reason, mend = next(
        (kind, reason, mend) for pattern, kind, reason, mend in _MEANINGS if re.search(pattern, f"{name}: {text}")
    )
    cause = re.search(r'message: "([^"]*)"', text)
    status, code = re.search(r"status code: (\d{3}[^:\n]*)", text), re.search(r"<Code>(\w+)</Code>", text)
    answer = (status[1].strip() if status else "") + (f" ({code[1]})" if code else "")
    words = {
        "first": text.partition("\n")[0][:300],
        "status": answer or "access is denied",  # for example "503 Service Unavailable (SlowDown)"
        "cause": f" ({cause[1]})" if cause else "",
    }
    return Failure(kind, reason.format_map(words), mend if code is None else _CODE_MENDS.get(code[1], mend))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRequest:
    """A request for one object.

    Attributes:
        url: the object.
        start: first byte; negative counts from the end, and `length` is then None.
        length: number of bytes, fewer if the object ends before; None = up to the end.
        etag: the version that it must still have; None = any.
        what: "size" requests only size and version; "listing" what is below the URL.
    """

    url: str
    start: int = 0
    length: int | None = None
    etag: str | None = None
    what: Literal["bytes", "size", "listing"] = "bytes"

    @property
    def is_part(self) -> bool:
        """Whether it requests a part of the object."""
        return self.start != 0 or self.length is not None

    @property
    def span(self) -> str:
        """The requested bytes, in words."""
        if self.what != "bytes":
            return "its size" if self.what == "size" else "a listing"
        if self.start < 0:
            return f"the last {-self.start} bytes"
        if self.length is None:
            return f"the bytes from {self.start} on" if self.start else "the whole object"
        return f"bytes {self.start} to {self.start + self.length - 1}"

    def past_end(self, size: int) -> ObjectChangedError:
        """Return the error of an object of `size` bytes that ends inside the range."""
        return ObjectChangedError(
            f"{self.url}: requested {self.span}, but the object has {size}: truncated or replaced", url=self.url
        )


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
    if request.what == "size":
        meta = obstore.head(store, location.path)
        data = memoryview(b"")
    else:
        result = obstore.get(store, location.path, options=options)  # type: ignore[arg-type]
        meta, (first, last) = result.meta, result.range
        data = memoryview(result.bytes())
        if data.nbytes != last - first:
            raise TruncatedError(f"{data.nbytes} bytes arrived, but {last - first} were announced")
    # servers without entity tags: modification time and size stand for the version
    version = str(meta["e_tag"] or f"{meta['last_modified'].isoformat()} {meta['size']}")
    part = Part(data, int(meta["size"]), version)
    if request.etag is not None and part.etag is not None and part.etag != request.etag:
        raise ObjectChangedError(
            f"{request.url} was replaced while it was open: its version was {request.etag}, now {part.etag} "
            f"({part.size} bytes). Reopen the data, and do not write to data while they are read",
            url=request.url,
        )
    return part
