"""All rules, by code."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.record import registered
from rankwise.diagnose.lint.rules import batch, checkpoints, collectives, data, launch, model, own, shares, step, wrap

__all__ = ["RULES"]

# Importing a family has made its rules.
_FAMILIES = (batch, checkpoints, collectives, data, launch, model, own, shares, step, suppression, wrap)
RULES = registered()
