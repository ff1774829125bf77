"""The rules, one file per family; importing this makes them all."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.rule import registered
from rankwise.diagnose.lint.rules import collectives, data

__all__ = ["RULES"]

RULES = registered()

del collectives, data, suppression
