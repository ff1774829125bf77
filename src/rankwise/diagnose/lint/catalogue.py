"""All rules, by code."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.record import registered
from rankwise.diagnose.lint.rules import collectives, data, model, wrap

__all__ = ["RULES"]

RULES = registered()

del collectives, data, model, suppression, wrap  # importing them has made their rules
