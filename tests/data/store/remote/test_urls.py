"""URLs: what is taken apart, and what is refused."""

import pytest

from rankwise.data.store.remote import locate
from rankwise.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b", ("s3", "s3://bucket", "a/b")),
        ("S3://bucket/a/b/", ("s3", "s3://bucket", "a/b")),
        ("s3://bucket", ("s3", "s3://bucket", "")),
        ("gs://bucket/a%20b#c?d", ("gs", "gs://bucket", "a%20b#c?d")),
        ("az://container/x", ("az", "az://container", "x")),
        ("abfs://files@account.dfs.core.windows.net/x", ("az", "abfs://files@account.dfs.core.windows.net", "x")),
        ("https://host:8080/a%20b/c", ("http", "https://host:8080", "a b/c")),
        ("file:///tmp/x", ("file", "file://", "tmp/x")),
        ("memory://name/x", ("memory", "memory://name", "x")),
    ],
)
def test_a_url_is_a_store_and_a_path(url, parts):
    """Paths stand as they are, but for those of web servers, which are percent-encoded."""
    assert tuple(locate(url)) == parts


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/local/path", "not the URL of a store"),
        ("ftp://host/x", "it must begin with s3, "),
        ("s3:///x", "names no bucket"),
        ("s3://bucket/a//b", "has an empty part"),
        ("s3://bucket/../b", r"has an empty part, or a part \. or \.\."),
        ("https://host/x?token=hush", "has a query or a fragment"),
        ("https://me:hush@host/x", "contains a user name or password"),
    ],
)
def test_urls_that_cannot_work_are_refused(url, reason):
    """The message says why, and repeats no secret."""
    with pytest.raises(ConfigError, match=reason) as caught:
        locate(url)
    assert "hush" not in str(caught.value)
