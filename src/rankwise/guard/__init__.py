"""Checks inside a running loop: find silent errors of multi-rank training, and name rank, parameter or sample."""

from rankwise.guard.findings import Finding
from rankwise.guard.guard import CHECKS, Guard, GuardOptions, guard_wish, guarded, trainer_guard
from rankwise.guard.replicas import check_signature

__all__ = ["CHECKS", "Finding", "Guard", "GuardOptions", "check_signature", "guard_wish", "guarded", "trainer_guard"]
