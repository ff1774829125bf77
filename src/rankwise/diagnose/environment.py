"""`rankwise env`: describe the environment of a run for bug reports; without importing torch, which may be broken."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from rankwise._version import __version__
from rankwise.diagnose import hardware
from rankwise.errors import WorldError
from rankwise.tracking.config import masked

_PACKAGES = (
    "torch", "numpy", "zarr", "numcodecs", "numba", "ml_dtypes", "anndata", "scipy", "pandas", "h5py", "obstore",
    "jax", "jaxlib", "submitit", "cloudpickle", "lightning", "pytorch-lightning", "accelerate", "torchmetrics",
    "scvi-tools", "ray", "mlflow", "mlflow-skinny", "tensorboard", "wandb", "typer", "rich", "triton",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip
_PREFIXES = (
    "RANKWISE_", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "NVIDIA_", "OMP_", "KMP_", "GOMP_", "MKL_",
    "OPENBLAS_", "NUMBA_", "NUMEXPR_", "BLOSC_", "XLA_", "JAX_", "SLURM_", "SBATCH_", "SRUN_", "OMPI_",
    "PMI_", "PMIX_",
    "MPI_", "KUBERNETES_", "JOB_COMPLETION_", "RAY_", "MLFLOW_", "WANDB_", "TP_",
    "UCX_", "FI_", "HSA_", "ROCR_", "HIP_",
)  # fmt: skip
_NAMES = {
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK",
    "PYTHONPATH", "PYTHONHASHSEED", "PYTHONNOUSERSITE", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX",
    "TMPDIR", "LANG", "LC_ALL", "TERM", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
}  # fmt: skip
_LIMITS = {
    "open files": "NOFILE", "processes": "NPROC", "locked memory": "MEMLOCK", "address space": "AS", "stack": "STACK",
    "core file": "CORE", "file size": "FSIZE",
}  # fmt: skip
_SCHEDULERS = {
    "Slurm": (("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_JOB_PARTITION"), "srun"),
    "Open MPI": (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "mpirun"),
    "Kubernetes": (("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"), "kubectl"),
    "torch's agent": (("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"), "torchrun"),
    "rankwise": (("RANKWISE_VITALS",), "rankwise"),
}


def collect_environment() -> dict[str, Any]:
    """Return the facts that affect a run on this machine, as JSON; secrets are masked as in run directories.

    It uses one process and no network, and does not import the reported packages.
    """
    return {
        "versions": _versions(),
        "system": _system(),
        "cpu": hardware.cpus(),
        "gpu": hardware.gpus(),
        "memory": hardware.memory(),
        "disk": hardware.disks(),
        "network": hardware.network(),
        "scheduler": _scheduler(os.environ),
        "variables": _variables(os.environ),
        "limits": _limits(),
    }


def _versions() -> dict[str, str]:
    found = {"rankwise": __version__, "python": f"{platform.python_implementation()} {platform.python_version()}"}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    with contextlib.suppress(ImportError, ValueError):
        spec = util.find_spec("torch")
        if spec is None:
            found["torch"] = "not installed" if "torch" not in found else f"{found['torch']}, but it cannot be found"
        elif spec.origin is not None:
            found["torch"] = f"{found.get('torch', 'without metadata')} ({_built_for(Path(spec.origin).parent)})"
    return found


def _built_for(folder: Path) -> str:
    """Return torch's build target from its version file, because the import may fail."""
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return "its files are damaged: no version.py"
    said = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return ", ".join(f"{name} {version}" for name, version in said.items()) or "built for CPU"


def _system() -> dict[str, Any]:
    release = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    return {
        "os": release.get("PRETTY_NAME", platform.system()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "container": _container(),
        "executable": _short(sys.executable),
        "rankwise_at": _short(str(Path(__file__).parents[1])),
    }


def _short(path: str) -> str:
    """Remove the user's name from a path, as the report will be pasted."""
    home = os.path.expanduser("~")  # noqa: PTH111  (unchanged for a user without one)
    return "~" + path.removeprefix(home) if home != "/" and path.startswith(home + "/") else path


def _container() -> str:
    marks = {"docker": "/.dockerenv", "podman": "/run/.containerenv", "apptainer": "/.singularity.d"}
    return next((name for name, mark in marks.items() if Path(mark).exists()), "none seen")


def _scheduler(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (variables, tool) in _SCHEDULERS.items():
        told = {variable: environ[variable] for variable in variables if environ.get(variable)}
        if variables[0] in told:
            found[name] = {"inside": told, "tool": _short(shutil.which(tool) or "") or f"no {tool} on PATH"}
        elif name not in {"torch's agent", "rankwise"} and shutil.which(tool):
            found[name] = {"inside": None, "tool": _short(shutil.which(tool) or "")}
    return {"found": found, "place": _place(environ)}


def _place(environ: Mapping[str, str]) -> str:
    """Return the rank that `rankwise.bind()` would get here, as text."""
    from rankwise._process.place import find_place

    try:
        place = find_place(environ)
    except WorldError as error:
        return f"cannot be determined: {error}"
    if place.family == "none":
        return "rank 0 of 1: no launcher started this process"
    return (
        f"rank {place.rank} of {place.world_size}, local rank {place.local_rank}, by the variables of {place.family}; "
        f"the ranks meet at {place.master_addr}:{place.master_port}"
    )


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    chosen = {name: text for name, text in sorted(environ.items()) if name in _NAMES or name.startswith(_PREFIXES)}
    hidden: dict[str, str] = masked(chosen)
    return {name: ":".join(map(_short, text.split(":"))) for name, text in hidden.items()}


def _limits() -> dict[str, str]:
    found = {}
    for name, word in _LIMITS.items():
        number = getattr(resource, f"RLIMIT_{word}", None)
        if number is not None:
            found[name] = " / ".join(_number(limit) for limit in resource.getrlimit(number))
    return found


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def describe_environment(facts: Mapping[str, Any]) -> str:
    """Return the facts as text for a bug report, one per line; limits are soft / hard."""
    lines: list[str] = []
    for section, values in facts.items():
        lines += [section, *_lines(values, 1)]
    return "\n".join(lines)


def _lines(values: Any, depth: int) -> list[str]:
    lines = []
    pairs = values.items() if isinstance(values, Mapping) else [(str(i), value) for i, value in enumerate(values)]
    for name, value in pairs:
        if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, Mapping) for v in value)):
            lines += ["  " * depth + str(name), *_lines(value, depth + 1)] if value else []
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
        lines.append(f"{'  ' * depth}{name}: {text or 'none'}")
    return lines
