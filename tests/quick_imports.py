"""Pause the collection of garbage while a big library is imported, and leave what it made out of later collections.

`make tests` copies this file into the environment's site-packages, with a `.pth` line that imports it at every start of
Python. Importing torch makes half a million objects that live to the end: the collector walks them again and again, and
once more when the process ends. A test run starts a thousand such processes.

Collected as ever is what scripts and rankwise make. ``PLAIN_IMPORTS=1`` switches all of this off: the demo is tested
so, as its users run it.
"""

import gc
import os
import sys
import threading
from importlib.machinery import PathFinder

BIG = frozenset(
    {
        "accelerate", "anndata", "jax", "lightning", "mlflow", "moto", "numba", "numpy", "pandas", "pytorch_lightning",
        "ray", "scipy", "sklearn", "submitit", "tensorboard", "torch", "torch._dynamo", "torch.distributed.checkpoint",
        "torchmetrics", "wandb", "xarray", "zarr",
    }
)  # fmt: skip


class Finder:
    """Finds the libraries that are big, and has them executed without collections."""

    def __init__(self):
        self._lock, self._depth, self._enabled, self._freeze = threading.Lock(), 0, True, True

    def find_spec(self, name, path=None, target=None):
        if name not in BIG:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute(execute, module)
        return spec

    def _execute(self, execute, module):
        with self._lock:
            if self._depth == 0:
                # nothing of the script's own can be a model yet; a list of all objects would break tuples that another
                # thread is just making (SystemError in tupleobject.c)
                self._enabled, self._freeze = gc.isenabled(), "torch.nn" not in sys.modules
                gc.disable()
            self._depth += 1
        try:
            execute(module)
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    if self._freeze:
                        gc.freeze()
                    if self._enabled:
                        gc.enable()


if "PLAIN_IMPORTS" not in os.environ:
    sys.meta_path.insert(0, Finder())
