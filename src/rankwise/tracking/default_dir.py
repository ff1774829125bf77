"""The default run directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.errors import ConfigError

__all__ = ["default_run_dir"]

_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher", "ipython", "ipython3")


def default_run_dir(argv: Sequence[str] | None = None) -> Path:
    """Return the run directory of this script: RANKWISE_RUN_DIR if it is set, else ``runs/<script name>``.

    A script without a name (an interactive session, ``python -c``) gets ``runs/session``; a module run by
    ``python -m package`` gets the package's name.

    Args:
        argv: the command line, script first; default ``sys.argv``.

    Raises:
        ConfigError: in a notebook, because all notebooks would share one name.
    """
    if given := os.environ.get("RANKWISE_RUN_DIR"):
        return Path(given)
    line = sys.argv if argv is None else argv
    script = Path(line[0]) if line and line[0] not in ("", "-c", "-m", "-") else Path("session")
    name = script.parent.name if script.name == "__main__.py" and script.parent.name else script.stem
    if name in _NOTEBOOKS:
        raise ConfigError(
            "a run in a notebook needs a name, as there is no script to name it after: Trainer(run='runs/NAME'); "
            "run=False writes nothing"
        )
    return Path("runs") / name
