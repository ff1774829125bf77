"""Options of `rankwise run` from environment variables, as torchrun reads them: Kubeflow sets them in each pod."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["announced_options"]

_OPTIONS = {
    "PET_NNODES": "nnodes",
    "PET_NODE_RANK": "node_rank",
    "PET_NPROC_PER_NODE": "nproc",
    "PET_MASTER_ADDR": "master_addr",
    "PET_MASTER_PORT": "master_port",
    "PET_MAX_RESTARTS": "max_restarts",
    "PET_RDZV_ENDPOINT": "rdzv_endpoint",
    "PET_RDZV_ID": "rdzv_id",
}


def announced_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options from PET_* variables, by parameter; options on the command line override them."""
    return {option: environ[name].strip() for name, option in _OPTIONS.items() if environ.get(name, "").strip()}
