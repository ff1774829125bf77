"""The exceptions of crops. Each says what, where (URI, box, sample) and how to fix it, and is a rankwise error."""

from __future__ import annotations

import enum

from rankwise.errors import ConfigError, DataError, RankwiseError, SampleError, WorldError


class Status(enum.IntEnum):
    """The kind of an error, as a number that logs and other languages can compare."""

    OK = 0
    AGAIN = 1
    INVALID = 2
    NOTFOUND = 3
    DTYPE = 4
    RANK = 5
    IO = 6
    DECODE = 7
    CUDA = 8
    OOM = 9
    BUDGET = 10
    SHUTDOWN = 11


class DamacyError(RankwiseError, RuntimeError):
    """Base of all errors of crops.

    Attributes:
        status: the kind.
        what: the message.
        uri: array of the sample, "" if the error concerns no sample.
        aabb: box of the sample, ``((start, stop), ...)``, or None.
        sample: number of the sample: its position in the stream, or its id in an index; -1 if none.
        place: location of its bytes (array, chunk, byte range), as far as known.
        others: further errors of the same batch.
    """

    status: Status = Status.INVALID

    def __init__(
        self,
        what: str,
        *,
        uri: str = "",
        aabb: tuple[tuple[int, int], ...] | None = None,
        sample: int = -1,
        place: str = "",
    ) -> None:
        Exception.__init__(self, what)
        self.what = what
        self.uri = uri
        self.aabb = aabb
        self.sample = sample
        self.place = place or uri
        self.others: tuple[DamacyError, ...] = ()


class TryAgain(DamacyError):  # noqa: N818  (the name that users know; so for the others)
    """Nothing is in progress: everything pushed so far has been popped."""

    status = Status.AGAIN


class InvalidArgument(DamacyError, ConfigError):  # noqa: N818
    """A configuration, device or box that cannot work."""


class InvalidSample(InvalidArgument, SampleError):  # noqa: N818
    """A sample that does not fit its array or the configuration: a box that extends beyond it, or of another shape."""

    damage = False


class NotFound(DamacyError, SampleError):  # noqa: N818
    """There is no array at the URI."""

    status = Status.NOTFOUND
    damage = False


class DtypeMismatch(DamacyError, ConfigError, SampleError):  # noqa: N818
    """The elements of an array cannot be converted to the requested dtype."""

    status = Status.DTYPE
    damage = False


class RankMismatch(InvalidSample):
    """A box has another number of axes than its array or the configuration."""

    status = Status.RANK


class StorageError(DamacyError, SampleError):
    """The storage failed while a sample was read: its content may be fine, so it is never skipped."""

    status = Status.IO
    damage = False


class DecodeError(DamacyError, SampleError):
    """The bytes of a sample are damaged: metadata, index, checksum or a chunk that cannot be decoded."""

    status = Status.DECODE


class NativeCudaError(DamacyError, WorldError):
    """The CUDA runtime failed."""

    status = Status.CUDA


class OutOfMemory(DamacyError, DataError, MemoryError):  # noqa: N818
    """The host has run out of memory."""

    status = Status.OOM


class BudgetExceeded(DamacyError, ConfigError):  # noqa: N818
    """The request does not fit the memory limits; the message lists the parts."""

    status = Status.BUDGET


class ShutdownError(DamacyError):
    """The pipeline was closed."""

    status = Status.SHUTDOWN


class PoolStarved(DamacyError):  # noqa: N818
    """No batch came within the timeout; the message says what it waited for."""

    status = Status.SHUTDOWN


def box_text(aabb: tuple[tuple[int, int], ...]) -> str:
    """Return a box as NumPy would write it: ``[0:64, 128:256]``."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in aabb) + "]"


def sample_error(
    kind: type[DamacyError], why: str, *, uri: str, aabb: tuple[tuple[int, int], ...], sample: int, place: str = ""
) -> DamacyError:
    """Return the error for a box that cannot be read."""
    where = f" ({place})" if place and place not in why else ""
    what = f"sample {sample} cannot be read: box {box_text(aabb)} of {uri}{where}: {why}"
    return kind(what, uri=uri, aabb=aabb, sample=sample, place=place)
