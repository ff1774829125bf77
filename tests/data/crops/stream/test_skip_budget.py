"""What is left out of pushed samples: only damage, never more than allowed, a batch at a time."""

from rankwise.data.crops import DecodeError, NotFound, StorageError
from rankwise.data.crops.stream.reader import SkipRule


def test_only_damage_within_the_budget():
    """Damage is left out while the budget lasts; trouble of the storage is raised whatever is left of it."""
    budget = SkipRule(3)
    assert budget.check(()) is None
    assert budget.check([DecodeError("a"), DecodeError("b")]) is None
    trouble = StorageError("s")
    assert budget.check([DecodeError("c"), trouble]) is trouble
    assert [str(error) for error in trouble.others] == ["c"]
    assert budget.check([DecodeError("c"), DecodeError("d")]).what == "c"
    assert budget.num_skipped == 2
    assert budget.check([DecodeError("e")]) is None
    assert budget.check([DecodeError("f")]).what == "f"
    assert budget.num_skipped == 3


def test_raise_is_no_budget():
    """By default everything is raised, the first error with the others as notes."""
    error = SkipRule("raise").check([NotFound("a"), DecodeError("b")])
    assert error.what == "a"
    assert error.__notes__ == ["in the same batch: b"]
