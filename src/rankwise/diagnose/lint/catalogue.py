"""All rules, by code."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.record import registered
from rankwise.diagnose.lint.rules import (
    after_wrap,
    batch,
    checkpoints,
    collectives,
    data,
    deprecations,
    duplicates,
    epochs,
    evaluation,
    frozen,
    launch,
    library_steps,
    model,
    nodes,
    own,
    rank_tests,
    reductions,
    restores,
    shares,
    step,
    wrap,
)

__all__ = ["RULES"]

# Importing a family has made its rules.
_FAMILIES = (
    *(after_wrap, batch, checkpoints, collectives, data, deprecations, duplicates, epochs, evaluation, frozen, launch),
    *(library_steps, model, nodes, own, rank_tests, reductions, restores, shares, step, suppression, wrap),
)
RULES = registered()
