"""The run directory, and numbers to somewhere: JSON lines always, a live line on the terminal, TensorBoard."""

from rankwise.tracking.default_dir import default_run_dir
from rankwise.tracking.metrics_file import read_metrics
from rankwise.tracking.progress import Progress
from rankwise.tracking.run_dir import RunDir
from rankwise.tracking.sink import Sink
from rankwise.tracking.tracker import Tracker

__all__ = ["Progress", "RunDir", "Sink", "Tracker", "default_run_dir", "read_metrics"]
