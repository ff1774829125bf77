"""How much crops say on standard error; the rest of the program hears it through `logging`."""

from __future__ import annotations

import logging

from rankwise.data.crops.exceptions import InvalidArgument

__all__ = ["set_log_level", "set_log_quiet"]

_LOG = logging.getLogger("rankwise.crops")
_LEVELS = (1, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_to_stderr: logging.Handler | None = None


def set_log_level(level: int) -> None:
    """Set what the logger ``rankwise.crops`` lets through: 0 = trace, 1 = debug, 2 = info, 3 = warnings, 4, 5 = fatal.

    Raises:
        InvalidArgument: the level is not 0 to 5.
    """
    if not isinstance(level, int) or not 0 <= level < len(_LEVELS):
        raise InvalidArgument(f"a log level is 0 (everything) to 5 (fatal only), got {level!r}")
    _LOG.setLevel(_LEVELS[level])


def set_log_quiet(quiet: bool = True) -> None:  # noqa: FBT001, FBT002  (the signature that users know)
    """Write the log to standard error too (``False``), or only to the program's own handlers (``True``, at first)."""
    global _to_stderr  # noqa: PLW0603  (there is one standard error)
    if _to_stderr is not None:
        _LOG.removeHandler(_to_stderr)
        _to_stderr = None
    if not quiet:
        _to_stderr = logging.StreamHandler()
        _to_stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(_to_stderr)
