"""The step and the loop; nothing else owns the optimizer."""

from rankwise.train.exact import ExactStep, StepReport
from rankwise.train.hooks import Hooks
from rankwise.train.options import TrainOptions
from rankwise.train.output import StepOutput, read_output
from rankwise.train.trainer import FitResult, Trainer
from rankwise.train.validation import evaluate
from rankwise.train.window import Window
from rankwise.train.wrapping import prepare, unwrapped

__all__ = [
    "ExactStep",
    "FitResult",
    "Hooks",
    "StepOutput",
    "StepReport",
    "TrainOptions",
    "Trainer",
    "Window",
    "evaluate",
    "prepare",
    "read_output",
    "unwrapped",
]
