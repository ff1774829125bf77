"""The fork server imports this module last: it imports the main script of the process that it serves."""

from __future__ import annotations

import os

from rankwise.data.feed.workers.forkserver import PRELOAD_VARIABLE, fork_with_sigterm_blocked, preload_main

fork_with_sigterm_blocked()

if PRELOAD_VARIABLE in os.environ:
    preload_main(os.environ.pop(PRELOAD_VARIABLE))
