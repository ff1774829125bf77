"""`ObjectPath`: a place in an object store, with the interface of a `Path` that this package needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from rankwise.errors import CheckpointError

_MANIFEST = "manifest.json"
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A place in an object store, with the methods of a `Path` that this package needs.

    Attributes:
        url: its URL.
        key: its key inside the store.
        store: the obstore object.
    """

    url: str
    key: str
    store: Any = field(compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # each rank has its own connection and its own keys
        return ObjectPath, (self.url, self.key, None)

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}", f"{self.key}/{name}".lstrip("/"), self.store)

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last component of the name."""
        return self.url.rpartition("/")[2]

    def names(self) -> dict[str, int]:
        """Return the sizes of all objects below, by name.

        Raises:
            OSError: the store cannot be reached now.
        """
        import obstore

        start = f"{self.key}/" if self.key else ""
        with store_errors(self):
            listed = obstore.list(self.store, prefix=self.key or None)
            return {
                meta["path"].removeprefix(start): meta["size"]
                for batch in listed
                for meta in batch
                if meta["path"].startswith(start)
            }

    def folders(self) -> set[str]:
        """Return the names of the folders below that have a manifest; errors as in `names`."""
        return {name.removesuffix(f"/{_MANIFEST}") for name in self.names() if name.endswith(f"/{_MANIFEST}")}

    def open(self, name: str) -> BinaryIO:
        """Return a file below, fetched into a temporary file.

        Raises:
            CheckpointError: it does not exist; the message has only the reason.
            OSError: it cannot be fetched now.
        """
        import obstore

        if not name or name.startswith("/") or ".." in name.split("/"):
            raise CheckpointError(f"its manifest.json names {name!r}, which is not a file inside it")
        place = self / name
        file = tempfile.TemporaryFile()  # noqa: SIM115  (whoever asked closes it)
        try:
            with store_errors(place):
                for block in obstore.get(self.store, place.key).stream(_BLOCK_BYTES):
                    file.write(block)
        except FileNotFoundError as error:
            file.close()
            raise CheckpointError(f"it has no {name}") from error
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return cast("BinaryIO", file)

    def put(self, content: bytes) -> None:
        """Write the object in one request; errors as in `names`."""
        import obstore

        with store_errors(self):
            obstore.put(self.store, self.key, content)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects below; errors as in `names`."""
        import obstore

        keys = [(self / name).key for name in names]
        if keys:
            with store_errors(self):
                obstore.delete(self.store, keys)


@contextmanager
def store_errors(place: ObjectPath) -> Iterator[None]:
    """Convert errors of the store to OSError, with the place."""
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise FileNotFoundError(2, "no such object", str(place)) from error
    except (BaseError, PermissionError) as error:
        raise OSError(5, str(error).partition("\n")[0], str(place)) from error
