"""Checks inside a running loop: what goes wrong silently on several ranks, said with rank, parameter or sample."""

from rankwise.guard.findings import Finding
from rankwise.guard.guard import CHECKS, Guard, GuardOptions, guard_wish, guarded, trainer_guard
from rankwise.guard.replicas import check_signature

__all__ = ["CHECKS", "Finding", "Guard", "GuardOptions", "check_signature", "guard_wish", "guarded", "trainer_guard"]
