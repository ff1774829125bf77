"""Checkpoints in an object store: all files of one below a unique name, and the manifest last, in one write.

Names below the root: ``step-0000000120/manifest.json`` is published; ``step-0000000120/<token>/...`` are the files that
it names. Files in no manifest were left by a killed save. ``skipped-manifest-*.json`` is that of a damaged one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from rankwise.checkpoint.commit import Fence, folder_name
from rankwise.checkpoint.format.manifest import read_manifest
from rankwise.checkpoint.storage.object_path import ObjectPath, store_errors
from rankwise.errors import CheckpointError, ConfigError, needs_extra

_MANIFEST = "manifest.json"


def is_url(folder: Any) -> bool:
    """Whether checkpoints with this name are in an object store."""
    return isinstance(folder, str) and "://" in folder


class Bucket:
    """Checkpoints below a URL; attributes and methods as in `Disk`.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://``, ...
        options: of the store, named as in obstore (``endpoint``, ``region``, ``access_key_id``, ...); others come from
            the usual places (``AWS_...`` variables, ...).

    Raises:
        MissingExtraError: obstore is not installed.
        ConfigError: there is no such kind of store or option.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        with needs_extra("checkpoints in object stores need obstore: pip install 'rankwise[remote]'"):
            from obstore.store import from_url
        kind, _, rest = url.rstrip("/").partition("://")
        bucket, _, key = rest.partition("/")
        variables = [os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")]
        endpoint = next((found for found in (options.get("endpoint"), *variables) if found), "")
        # a URL with http:// allows it
        client = {"client_options": {"allow_http": True}} if kind == "s3" and str(endpoint).startswith("http:") else {}
        try:
            store = from_url(f"{kind}://{bucket}/", **{**client, **options})
        except Exception as error:
            raise ConfigError(f"cannot open a store for {url}: {str(error).partition(chr(10))[0]}") from error
        self.root = ObjectPath(url.rstrip("/"), key, store)

    def make(self, step: int, attempt: int, token: str) -> ObjectPath:
        """See `Disk`."""
        return self.root / folder_name(step) / f"attempt-{attempt}-{token}"

    def prepare(self, made: ObjectPath) -> None:
        """See `Disk`."""
        del made  # there are no folders

    @contextmanager
    def create(self, made: ObjectPath, name: str) -> Iterator[BinaryIO]:
        """See `Disk`."""
        import obstore

        with store_errors(made / name), obstore.open_writer(made.store, (made / name).key) as file:
            yield cast("BinaryIO", _Upload(file))

    def flush(self, made: ObjectPath, folder: str) -> None:
        """See `Disk`."""
        del made, folder

    def size_of(self, made: ObjectPath, name: str) -> int | None:
        """See `Disk`."""
        return (made / name.rpartition("/")[0] if "/" in name else made).names().get(name.rpartition("/")[2])

    def publish(self, made: ObjectPath, step: int, manifest: bytes, fence: Fence) -> None:
        """See `Disk`."""
        target = self.root / folder_name(step)
        with fence():
            before = _leftovers(target.names(), made.name)
            (target / _MANIFEST).put(manifest)
        target.delete(before)

    def discard(self, made: ObjectPath, folder: str | None) -> None:
        """See `Disk`."""
        target = self.root / made.url.split("/")[-2]
        # a manifest that was sent may have arrived, whatever the answer
        if _MANIFEST not in target.names() or _token_of(target) not in (None, made.name):
            place = made if folder is None else made / folder
            place.delete(place.names())

    def clean(self, skipped: Iterable[ObjectPath], fence: Fence) -> None:
        """See `Disk`."""
        with fence():
            for folder in skipped:
                self._set_aside(folder)
            steps: dict[str, dict[str, int]] = {}
            for name, size in self.root.names().items():
                step, _, inside = name.partition("/")
                if step.startswith("step-") and inside:
                    steps.setdefault(step, {})[inside] = size
            for step, names in steps.items():
                folder = self.root / step
                token = _token_of(folder) if _MANIFEST in names else ""
                if token is not None:
                    folder.delete(_leftovers(names, token))

    def release(self) -> None:
        """Do nothing: an object store has no locks."""

    def remove(self, folders: Callable[[], Iterable[ObjectPath]], fence: Fence) -> None:
        """See `Disk`."""
        with fence():
            doomed = list(folders())
            for folder in doomed:
                folder.delete([_MANIFEST])
        for folder in doomed:
            folder.delete(_leftovers(folder.names(), ""))

    def _set_aside(self, folder: ObjectPath) -> None:
        import obstore

        number = sum(name.startswith("skipped-manifest-") for name in folder.names())
        with store_errors(folder):
            obstore.copy(folder.store, (folder / _MANIFEST).key, (folder / f"skipped-manifest-{number}.json").key)
        folder.delete([_MANIFEST])


class _Upload:
    """A file that is sent while it is written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.flush: Callable[[], None] = file.flush

    def write(self, block: Any) -> None:
        """Copy the block: the store sends it later, when torch has reused the memory for the next block."""
        self._file.write(bytes(block))


def _leftovers(names: Mapping[str, int], token: str) -> list[str]:
    """Return files in a checkpoint's folder that belong to other saves than `token`'s; none if one was skipped."""
    if any(name.startswith("skipped-manifest-") for name in names):
        return []
    return [name for name in names if name != _MANIFEST and not (token and name.startswith(f"{token}/"))]


def _token_of(folder: ObjectPath) -> str | None:
    """Return the name below which the files of a published checkpoint are; None if unknown."""
    try:
        info = read_manifest(cast("Path", folder))
    except CheckpointError:
        return None
    return next((file.path.partition("/")[0] for part in info.parts.values() for file in part.files), "")
