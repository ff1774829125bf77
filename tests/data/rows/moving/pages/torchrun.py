"""torchrun of a notebook, on a port that is free: ``python torchrun.py --nproc_per_node=N [...] SCRIPT``.

Its agent forks the ranks, which so have what takes long to import; `no_gpu` plays their GPUs.
"""

import importlib
import runpy
import sys

import no_gpu
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rankwise.data.store.decode.choice import choose_decoder


def run_rank(script):
    """One rank, to its end."""
    no_gpu.play_gpu()
    runpy.run_path(script, run_name="__main__")


def main(number, *others):
    """Run the script, the last word, on as many ranks as the first one says."""
    for slow in ("anndata", "rankwise.data.rows.samplers"):
        importlib.import_module(slow)
    choose_decoder()  # imports numba
    ranks = int(number.removeprefix("--nproc_per_node="))
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "notebook"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, start_method="fork", **place)
    elastic_launch(config, run_rank)(others[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
