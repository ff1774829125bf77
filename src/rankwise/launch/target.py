"""What every rank runs: a script, a module, a function of a module, or a pickled call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankwise.errors import ConfigError

Kind = Literal["script", "module", "function", "call"]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What every rank runs.

    Attributes:
        kind: "script" (a file, as `python file`), "module" (as `python -m`), "function" (`module:function`, called
            without arguments) or "call" (a file with a pickled call, written by `rankwise.run`).
        name: path, dotted module name, or `module:function`.
        args: the target's `sys.argv[1:]`.
        main: the file that the ranks import before they execute a call, "" if there is none or it is unknown.
        function: the function of this file that they call, "" if unknown.
        path: the ranks' `sys.path` for the call.

    Raises:
        ConfigError: the name does not fit the kind.
    """

    kind: Kind
    name: str
    args: tuple[str, ...] = ()
    main: str = ""
    function: str = ""
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"a target of kind {self.kind!r} needs a name, got an empty one")
        if self.kind == "function" and not _FUNCTION.fullmatch(self.name):
            raise ConfigError(f"a function target must be package.module:function, got {self.name!r}")
        if self.kind == "script" and not Path(self.name).exists():
            raise ConfigError(f"no script {self.name!r} in {Path.cwd()}{_near(self.name)}")
        if self.kind == "script" and Path(self.name).is_dir() and not any(Path(self.name).glob("__main__.*")):
            raise ConfigError(f"{self.name!r} is a folder without __main__.py: give a script in it, or -m and a module")


def parse_target(words: Sequence[str], *, as_module: bool = False) -> Target:
    """Parse the end of a command line: what to run, and its own arguments.

    Raises:
        ConfigError: there is no target, or the script does not exist.
    """
    if not words:
        raise ConfigError("nothing to run: give a script, -m module, or module:function, then its arguments")
    name, args = words[0], tuple(words[1:])
    if as_module:
        return Target(kind="module", name=name, args=args)
    if not Path(name).exists() and _FUNCTION.fullmatch(name):
        return Target(kind="function", name=name, args=args)
    return Target(kind="script", name=name, args=args)


def _near(name: str) -> str:
    """Return a hint about what the user may have meant: a script of a similar name, an option, or a module."""
    path = Path(name)
    if name.startswith("-"):
        return "; put options of rankwise before the script, and its own after it"
    beside = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
    import difflib  # needed only for an error message

    close = difflib.get_close_matches(path.name, beside, n=1)
    if close:
        return f"; did you mean {str(path.parent / close[0])!r}?"
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name) and path.suffix != ".py":
        return f"; for a module use -m {name}"
    return ""
