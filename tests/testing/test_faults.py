"""Faults on demand strike once, where they were asked for."""

import pytest

from rankwise.errors import ConfigError
from rankwise.testing import Fault


def test_a_fault_is_written_as_text():
    """what:who@step, and the attempt if it is not the first; from the environment."""
    assert Fault.parse("kill:1@7") == Fault(what="kill", who="1", step=7)
    assert Fault.parse("hang:all@0").who == "all"
    assert Fault.parse("kill:1@7#2") == Fault(what="kill", who="1", step=7, attempt=2)


@pytest.mark.parametrize("text", ["", "kill", "kill:1", "kill:1@x", "melt:1@3", "kill:@3", "kill:1@3#", "kill:1@3#x"])
def test_anything_else_is_refused(text):
    """The message shows how a fault is written."""
    with pytest.raises(ConfigError, match=r"kill\|raise\|hang"):
        Fault.parse(text)


def test_it_strikes_its_rank_step_and_attempt_only(monkeypatch):
    """Other ranks, steps and attempts go on."""
    monkeypatch.setenv("RANKWISE_TEST_FAULT", "raise:1@3")
    fault = Fault.from_environment()
    for rank, step, attempt in ((0, 3, 1), (1, 2, 1), (1, 3, 2)):
        fault.strike(rank=rank, step=step, attempt=attempt)
    with pytest.raises(RuntimeError, match="rank 1 after step 3"):
        fault.strike(rank=1, step=3, attempt=1)
    monkeypatch.delenv("RANKWISE_TEST_FAULT")
    assert Fault.from_environment() is None
