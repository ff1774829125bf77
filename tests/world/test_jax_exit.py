"""A rank of a JAX program that fails leaves at once."""

import os
import sys

import pytest

from rankwise.world import jax_start


class Closed:
    """A stream whose reader is gone."""

    def flush(self):
        raise BrokenPipeError


@pytest.fixture
def left(monkeypatch):
    """The exit codes that this process would have ended with."""
    found = []
    monkeypatch.setattr(jax_start.os, "_exit", found.append)
    monkeypatch.setattr(jax_start.logging, "shutdown", lambda: None)
    monkeypatch.setattr(jax_start, "_watched", os.getpid())
    monkeypatch.setattr(jax_start, "_exitcode", None)
    return found


@pytest.mark.parametrize("stream", [None, Closed()])
def test_a_failed_rank_leaves_though_nobody_reads_its_output(left, monkeypatch, stream):
    """A broken pipe, or no stream at all, does not send it to the meeting at JAX's end, where it would wait."""
    monkeypatch.setattr(sys, "stdout", stream)
    jax_start.note_failure(3)
    jax_start._exit_without_barrier()
    assert left == [3]


def test_others_take_the_usual_way_out(left, monkeypatch):
    """A rank that did not fail, and a process that was forked from one that did, meet the others or just end."""
    jax_start._exit_without_barrier()
    jax_start.note_failure(3)
    monkeypatch.setattr(jax_start, "_watched", os.getpid() + 1)
    jax_start._exit_without_barrier()
    assert left == []
