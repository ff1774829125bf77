"""The error family: every error of rankwise is a `RankwiseError` and also the builtin that a caller would expect.

A message names what was wanted, what came, the place (rank, file, array, chunk, sample) and the mend.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DesyncError",
    "FencedError",
    "GuardError",
    "Interrupted",
    "LaunchError",
    "MissingExtraError",
    "RankFailure",
    "RankwiseError",
    "RunDirError",
    "SampleError",
    "StepError",
    "WorldError",
]


class RankwiseError(Exception):
    """Base of every error that rankwise raises on purpose."""


class ConfigError(RankwiseError, ValueError):
    """An argument, option or combination of them that cannot work."""


class Interrupted(SystemExit):
    """A training that saved and stopped because it was asked to: a signal, or its time limit. All ranks raise it.

    No failure, so no `RankwiseError`, and ``except Exception`` lets it through: the process ends with code 75
    (``EX_TEMPFAIL``), which `rankwise run` reads as "again, please".
    """

    EXIT_CODE = 75

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.code = self.EXIT_CODE


class MissingExtraError(RankwiseError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


@contextmanager
def needs_extra(message: str) -> Iterator[None]:
    """Raise `MissingExtraError` with this message where an import in the block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(message) from error


class WorldError(RankwiseError, RuntimeError):
    """This process cannot find, join or use its place among the ranks."""


class DesyncError(WorldError):
    """Ranks met in a collective with different calls, or one of them met it with an error.

    Attributes:
        ranks: the global ranks that differ or failed, sorted; empty if unknown.
        differ: whether the ranks made different calls; else one of them failed before its call.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = (), differ: bool = False) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.differ = differ


class LaunchError(RankwiseError, RuntimeError):
    """Ranks could not be started, or did not end well."""


class RankFailure(LaunchError):  # noqa: N818  (a failure of a rank, reported here; not an error of this process)
    """At least one rank raised, exited non-zero, was killed or hung.

    Attributes:
        rank: the global rank of the root cause.
        exitcode: its exit status; negative is the signal that ended it; None if it hung and was stopped by us.
        traceback: the traceback text of the root cause, "" if it left none.
    """

    def __init__(self, message: str, *, rank: int = -1, exitcode: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.exitcode = exitcode
        self.traceback = traceback


class DataError(RankwiseError, RuntimeError):
    """Data on disk are missing, damaged or of another kind than asked for."""


class SampleError(DataError):
    """One sample could not be read.

    Attributes:
        sample: index of the sample in its source; -1 if unknown.
        place: where its bytes lie (store, array, chunk), for the message.
        damage: whether its content is damaged, so that a loader with a budget of skips may leave it out; False for
            trouble with the storage or with what was asked for, which another sample would meet too.
    """

    damage: bool = True

    def __init__(self, message: str, *, sample: int = -1, place: str = "", damage: bool = True) -> None:
        super().__init__(message)
        self.sample = sample
        self.place = place
        self.damage = damage


class StepError(RankwiseError, ValueError):
    """A step function broke its contract (what it returned, or what it did to the gradients)."""


class GuardError(RankwiseError, RuntimeError):
    """A guard has found what is wrong for sure: ranks that do not train one model on parts of one set of data.

    Attributes:
        findings: the records (`rankwise.guard.Finding`), equal on all ranks.
    """

    def __init__(self, message: str, *, findings: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class CheckpointError(RankwiseError, RuntimeError):
    """A checkpoint could not be written, or none that is whole could be read."""


class RunDirError(RankwiseError, RuntimeError):
    """A run directory belongs to another run, is in use, or holds a finished one."""


class FencedError(RunDirError):
    """A newer attempt owns the run directory: this process is a left-over and must not publish."""
