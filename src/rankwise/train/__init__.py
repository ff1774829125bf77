"""The step and the loop; only this package steps the optimizer."""

from rankwise.train.loaders.streams import StreamLoader
from rankwise.train.loop.configuration import TrainOptions
from rankwise.train.loop.ema import EMA
from rankwise.train.loop.hooks import Hooks
from rankwise.train.loop.loop import FitResult
from rankwise.train.loop.monitors import (
    EarlyStopping,
    GradientStats,
    LearningRates,
    Predictions,
    SystemMetrics,
    Throughput,
)
from rankwise.train.loop.validation import evaluate
from rankwise.train.models.sharding import is_sharded, prepare_optimizer, shards_state
from rankwise.train.models.unwrapped_models import (
    average_gradients,
    average_parameters,
    device_of,
    has_batch_norm,
    move_optimizer,
)
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.balance import Balance
from rankwise.train.step.exact import ExactStep
from rankwise.train.step.ledger import StepReport
from rankwise.train.step.output import StepOutput, read_output
from rankwise.train.step.schedules import BySamples
from rankwise.train.step.window import StreamWindow, Window, windows
from rankwise.train.strategy import Evidence, prepare
from rankwise.train.trainer import Trainer

__all__ = [
    "EMA",
    "Balance",
    "BySamples",
    "EarlyStopping",
    "Evidence",
    "ExactStep",
    "FitResult",
    "GradientStats",
    "Hooks",
    "LearningRates",
    "Predictions",
    "StepOutput",
    "StepReport",
    "StreamLoader",
    "StreamWindow",
    "SystemMetrics",
    "Throughput",
    "TrainOptions",
    "Trainer",
    "Window",
    "average_gradients",
    "average_parameters",
    "device_of",
    "evaluate",
    "has_batch_norm",
    "is_sharded",
    "move_optimizer",
    "prepare",
    "prepare_optimizer",
    "read_output",
    "shards_state",
    "unwrapped",
    "windows",
]
