"""Checkpoints: published completely or not at all, verified by checksums, restored at any world size."""

from rankwise.checkpoint.checkpointer import Checkpointer
from rankwise.checkpoint.format.manifest import CheckpointInfo
from rankwise.checkpoint.interruption import Interruption
from rankwise.checkpoint.jax_tree import JaxTree
from rankwise.checkpoint.parts import RandomState, Replicated
from rankwise.checkpoint.restore import RestoreReport
from rankwise.checkpoint.states import ModelState, OptimizerState

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "Interruption",
    "JaxTree",
    "ModelState",
    "OptimizerState",
    "RandomState",
    "Replicated",
    "RestoreReport",
]
