"""All rules, by code."""

from rankwise.diagnose.lint import suppression
from rankwise.diagnose.lint.record import registered
from rankwise.diagnose.lint.rules import (
    after_wrap,
    apart,
    attributes,
    batch,
    batch_sizes,
    checkpoints,
    collectives,
    data,
    deprecations,
    duplicates,
    epochs,
    evaluation,
    files,
    frozen,
    launch,
    library_steps,
    model,
    nodes,
    own,
    ports,
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
    *(after_wrap, apart, attributes, batch, batch_sizes, checkpoints, collectives, data, deprecations, duplicates),
    *(epochs, evaluation, files, frozen, launch, library_steps, model, nodes, own, ports, rank_tests, reductions),
    *(restores, shares, step, suppression, wrap),
)
RULES = registered()
