"""The run directory, and sinks for a run's numbers: JSON lines always, a live line, TensorBoard, MLflow, W&B."""

from rankwise.tracking.metrics_file import read_metrics
from rankwise.tracking.run_dir import RunDir, default_run_dir
from rankwise.tracking.services.mlflow import MlflowSink
from rankwise.tracking.services.outbox import Line, Refused, RunFacts, Service
from rankwise.tracking.services.wandb import WandbSink
from rankwise.tracking.terminal.progress import Progress
from rankwise.tracking.tracker import Sink, Tracker

__all__ = [
    "Line",
    "MlflowSink",
    "Progress",
    "Refused",
    "RunDir",
    "RunFacts",
    "Service",
    "Sink",
    "Tracker",
    "WandbSink",
    "default_run_dir",
    "read_metrics",
]
