"""The command line as tests call it."""

import signal
import sys

import pytest

from rankwise.cli import main


@pytest.fixture
def command(capsys, monkeypatch):
    """Calls the command line in this process, which costs no imports; returns (exit code, stdout, stderr)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["rankwise", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as done:
            code = done.code or 0
        return (code, *capsys.readouterr())

    held = signal.getsignal(signal.SIGINT)
    yield call
    signal.signal(signal.SIGINT, held)
