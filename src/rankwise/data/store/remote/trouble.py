"""What goes wrong with a store: the errors, and which of obstore's exceptions mean what."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from rankwise.errors import DataError

__all__ = ["ObjectChangedError", "TransferError", "Trouble", "TroubleKind", "TruncatedError", "judge"]


class TransferError(DataError):
    """The store could not be reached, did not answer in time, or refused. Says nothing about the data.

    Attributes:
        url: the object.
        attempts: how often it was tried.
        damage: False: a sample must not be skipped for this.
    """

    damage = False

    def __init__(self, message: str, *, url: str = "", attempts: int = 0) -> None:
        super().__init__(message)
        self.url = url
        self.attempts = attempts


class ObjectChangedError(DataError):
    """An object is not the one that was looked at before: replaced, cut or deleted.

    Attributes:
        url: the object.
        damage: True: its content cannot be had, however often one asks.
    """

    damage = True

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class TruncatedError(Exception):
    """An answer holds another number of bytes than it says: it was cut on its way."""


TroubleKind: TypeAlias = Literal["passing", "missing", "changed", "beyond", "no_ranges", "denied", "refused"]


class Trouble(NamedTuple):
    """What an exception of a store means.

    Attributes:
        kind: "passing" = try again; "missing" = there is no such object; "changed" = it is not the version that was
            asked for; "beyond" = the range begins past its end; "no_ranges" = the server sends whole objects only;
            "denied" = not with these credentials; "refused" = any other answer that will not change.
        reason: what happened, short.
        mend: what to do about it, "" if unknown.
    """

    kind: TroubleKind
    reason: str
    mend: str = ""


_PASSING_STATUS = (408, 425, 429)
_LASTING_STATUS = (501, 505)
_CREDENTIALS = (
    "give keys in the environment or in RemoteOptions.store; for data that anyone may read: "
    'RemoteOptions(store={"anonymous": True})'
)


def judge(error: BaseException) -> Trouble:
    """Say what an exception that obstore raised means."""
    if isinstance(error, TruncatedError):
        return Trouble("passing", f"the answer was cut: {error}")
    text = str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return Trouble("refused", "there is no such bucket or container", "check its name, the endpoint and the region")
    if isinstance(error, FileNotFoundError):
        return Trouble("missing", "there is no such object")
    return _by_type(type(error).__name__, text) or _by_place(text) or _by_status(text) or _by_kind(text)


def _by_type(name: str, text: str) -> Trouble | None:
    if name == "PreconditionError":
        return Trouble("changed", "it was replaced since it was opened")
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(text)
    if name == "NotSupportedError":
        return Trouble("no_ranges", "the server does not answer requests for parts of it")
    return None


def _by_place(text: str) -> Trouble | None:
    # the addresses where machines in a cloud are told their credentials: asked last, when nothing else gave any
    if "169.254." in text or "metadata.google.internal" in text:
        return Trouble("denied", "no credentials were found", _CREDENTIALS)
    if "LocalFileSystem" in text or "InMemory" in text:
        return _local(text)
    return None


def _denied(text: str) -> Trouble:
    mend = _CREDENTIALS
    if "<Code>AccessDenied</Code>" in text:
        mend += "; S3 also answers this way for objects that do not exist when listing the bucket is not allowed"
    return Trouble("denied", _status(text) or "access is denied", mend)


def _local(text: str) -> Trouble:
    if "StartTooLarge" in text:
        return Trouble("beyond", "it ends before the range begins")
    # a path below a file: the same answer as for a path that is not there
    kind: TroubleKind = "missing" if "NotADirectory" in text else "refused"
    return Trouble(kind, _first_line(text))


def _by_status(text: str) -> Trouble | None:
    found = re.search(r"status code: (\d{3})", text)
    if found is None:
        return None
    status = int(found[1])
    if status == 416:
        return Trouble("beyond", "it ends before the range begins")
    passing = status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS)
    mend = "ask less at once: lower RemoteOptions.concurrency" if status in (429, 503) else ""
    return Trouble("passing" if passing else "refused", _status(text), mend)


def _by_kind(text: str) -> Trouble:
    if "NotPartial" in text:
        return Trouble("no_ranges", "the server does not answer requests for parts of it")
    if "redirect" in text:
        return Trouble("refused", "the store points elsewhere", "check the endpoint and the region")
    if re.search(r"certificate|UnknownIssuer", text):
        return Trouble("refused", _first_line(text), 'its certificate is not trusted: store={"root_certificate": ...}')
    found = re.search(r"kind: (Timeout|Interrupted|Connect|Request|Decode),", text)
    if found is not None:
        return Trouble("passing", _network_reason(found[1], text))
    if "UnexpectedRange" in text:
        return Trouble("passing", _first_line(text))
    return Trouble("refused", _first_line(text))


def _network_reason(kind: str, text: str) -> str:
    if kind == "Timeout":
        return "nothing arrived in time"
    system = re.search(r'message: "([^"]*)"', text)
    if "IncompleteBody" in text or kind == "Interrupted":
        return f"the connection ended in the middle of the answer{f' ({system[1]})' if system else ''}"
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
