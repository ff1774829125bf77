"""All rules, by code."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.record import registered
from rankwise.diagnose.lint.rules import own
from rankwise.diagnose.lint.rules.data import data, epochs, evaluation, shares
from rankwise.diagnose.lint.rules.launches import deprecations, launch, nodes
from rankwise.diagnose.lint.rules.saves import checkpoints, files, restores
from rankwise.diagnose.lint.rules.steps import batch, collectives, divergence, rank_tests, step
from rankwise.diagnose.lint.rules.wraps import after_wrap, devices, model, passes, wrap

# Importing a family has made its rules.
_FAMILIES = (
    *(data, epochs, evaluation, shares),
    *(after_wrap, devices, model, passes, wrap),
    *(batch, collectives, divergence, rank_tests, step),
    *(checkpoints, files, restores),
    *(deprecations, launch, nodes),
    *(own, suppression),
)
RULES = registered()
