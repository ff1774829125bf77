"""Which failures pass."""

import pickle

import pytest

from rankwise.data.store.remote import ObjectChangedError, TransferError
from rankwise.data.store.remote.requests import TruncatedError, classify


class GenericError(Exception):
    """Named as obstore's."""


class PermissionDeniedError(Exception):
    """Named as obstore's."""


def status(code):
    return GenericError(
        f"Generic S3 error: Error performing GET u in 1s - Server returned non-2xx status code: {code}: "
    )


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (status("500 Internal Server Error"), "passing", "500 Internal Server Error"),
        (status("502 Bad Gateway"), "passing", "502"),
        (status("425 Too Early"), "passing", "425"),
        (status("501 Not Implemented"), "refused", "501"),
        (status("400 Bad Request"), "refused", "400"),
        (status("416 Range Not Satisfiable"), "beyond", "ends before"),
        (GenericError("kind: Decode,"), "passing", "kind"),
        (
            GenericError('error\nkind: Connect,\nmessage: "No route to host"'),
            "passing",
            r"no connection (No route to host)",
        ),
        (GenericError("invalid peer certificate: UnknownIssuer\nkind: Connect,"), "refused", "certificate"),
        (GenericError("Received redirect without LOCATION"), "refused", "another location"),
        (GenericError("Error performing PUT http://169.254.169.254/latest"), "denied", "no credentials"),
        (GenericError("x <Code>NoSuchBucket</Code>"), "refused", "no such bucket"),
        (GenericError("something new\nwith details"), "refused", "something new"),
        (FileNotFoundError("x"), "missing", "no such object"),
        (TruncatedError("3 bytes arrived, but 4 were announced"), "passing", "truncated: 3 bytes"),
    ],
)
def test_failures_are_told_apart(error, kind, reason):
    """By status, by what the network said, and with a reason of one line; what is unknown is not tried for ever."""
    failure = classify(error)
    assert failure.kind == kind
    assert reason in failure.reason
    assert "\n" not in failure.reason


@pytest.mark.parametrize(
    ("answer", "code", "mend"),
    [
        ("400 Bad Request", "ExpiredToken", "renew the temporary keys"),
        ("403 Forbidden", "ExpiredToken", "renew the temporary keys"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "region"),
        ("403 Forbidden", "InvalidObjectState", "archived"),
        ("403 Forbidden", "SignatureDoesNotMatch", "set keys in the environment"),
        ("400 Bad Request", "InvalidArgument", ""),
    ],
)
def test_what_s3_says_has_its_own_remedy(answer, code, mend):
    """Expired keys, a wrong clock and an archive are not mended by other credentials."""
    kind = PermissionDeniedError if answer.startswith("403") else GenericError
    failure = classify(kind(f"Server returned non-2xx status code: {answer}: <Error><Code>{code}</Code></Error>"))
    assert failure.reason == f"{answer} ({code})"
    assert failure.mend.startswith(mend) if mend in ("", "renew the temporary keys") else mend in failure.mend


def test_errors_survive_pickling():
    """They travel between processes with what they know."""
    error = pickle.loads(pickle.dumps(TransferError("gone", url="s3://b/x", attempts=3)))
    assert (str(error), error.url, error.attempts, error.damage) == ("gone", "s3://b/x", 3, False)
    assert pickle.loads(pickle.dumps(ObjectChangedError("new", url="s3://b/x"))).damage
