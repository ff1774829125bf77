"""Options that torchrun needs and one machine does not: accepted, and said once to do nothing."""

from __future__ import annotations

import sys

from rankwise.errors import ConfigError

__all__ = ["check_nodes", "say_unneeded"]

_HOW_TO_RUN_SEVERAL = (
    "rankwise run starts the ranks of one machine for now; on several, start the script with torchrun, or with srun "
    "python inside a Slurm job: rankwise.bind() finds its place under both"
)


def check_nodes(nnodes: str, node_rank: int) -> None:
    """Refuse a launch over several machines.

    Raises:
        ConfigError: nnodes is not 1 ("1:1" is), or this is not node 0.
    """
    if nnodes not in {"1", "1:1"} or node_rank != 0:
        raise ConfigError(f"--nnodes {nnodes} --node-rank {node_rank}: {_HOW_TO_RUN_SEVERAL}")


def say_unneeded(**options: object) -> None:
    """Say which of the given options (None: not given) have no effect here."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        print(f"rankwise: not needed on one machine, ignored: {', '.join(given)}", file=sys.stderr)
