"""Choose the device of a rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankwise._process.variables import int_of
from rankwise.errors import ConfigError, WorldError

_RANKS_PER_GPU = "RANKWISE_RANKS_PER_GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The accelerators that this process sees.

    Attributes:
        num_cuda: CUDA devices.
        mps: whether Apple's GPU can be used.
        expected: why there should be a GPU, and what was found instead; "" if none is expected.
    """

    num_cuda: int = 0
    mps: bool = False
    expected: str = ""


def visible_devices() -> Visible:
    """Return the devices that torch sees; needs no process group."""
    import torch

    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    expected = ""
    if not num_cuda and (assigned := slurm_gpus(os.environ)):
        built = "ROCm" if torch.version.hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
        expected = (
            f"node {os.uname().nodename}: Slurm has given this task GPUs ({assigned}), but torch {torch.__version__}, "
            f"built for {built}, sees none of them "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})"
        )
    return Visible(num_cuda=num_cuda, mps=torch.backends.mps.is_available(), expected=expected)


def slurm_gpus(environ: Mapping[str, str]) -> str:
    """Return the variables in which Slurm lists a task's GPUs, "" if there are none; a shell of salloc is no task."""
    if "SLURM_PROCID" not in environ:
        return ""
    names = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_TASK")
    return ", ".join(f"{name}={environ[name]}" for name in names if environ.get(name, "0") not in {"", "0"})


def ranks_per_gpu(environ: Mapping[str, str]) -> int:
    """Return the launcher's number of ranks per GPU, 1 by default.

    Raises:
        WorldError: the variable is not a number.
    """
    return max(1, int_of(environ, _RANKS_PER_GPU) or 1)


def choose_device(request: str, *, local_rank: int, world_size: int, visible: Visible, sharers: int = 1) -> str:
    """Return the name of this rank's device.

    "auto" takes CUDA if available, else MPS for a single rank, else the CPU. "auto" and "cuda" take the device with the
    number of the local rank. If exactly one device is visible, it is assumed to be this rank's own (launchers can limit
    ``CUDA_VISIBLE_DEVICES`` per rank); `bind` refuses two ranks on the same device.

    Args:
        request: "auto", "cpu", "cuda", "cuda:<index>" or "mps".
        local_rank: this rank's number on its machine.
        world_size: number of ranks.
        visible: what torch sees.
        sharers: ranks per GPU; the first ranks get the first GPU.

    Raises:
        ConfigError: the request is none of these.
        WorldError: the device does not exist (for "auto": Slurm assigned GPUs), or cannot serve several ranks.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", request):
        raise ConfigError(f'device must be "auto", "cpu", "cuda", "cuda:<index>" or "mps", got {request!r}')
    if request == "auto":
        if visible.expected and not visible.num_cuda:
            raise WorldError(f'{visible.expected}: check the driver and this build of torch, or use bind(device="cpu")')
        request = "cuda" if visible.num_cuda else "mps" if visible.mps and world_size == 1 else "cpu"
    if request == "mps":
        return _mps(world_size, visible)
    return request if request == "cpu" else _cuda(request, local_rank // sharers, visible, local_rank)


def _mps(world_size: int, visible: Visible) -> str:
    if not visible.mps:
        raise WorldError('device="mps" was requested, but torch finds no MPS device: use device="cpu"')
    if world_size > 1:
        raise WorldError(f'MPS supports one rank, but this world has {world_size}: use device="cpu", or start one rank')
    return "mps"


def _cuda(request: str, turn: int, visible: Visible, local_rank: int) -> str:
    if not visible.num_cuda:
        raise WorldError(
            f"device={request!r} was requested, but {visible.expected or 'torch finds no CUDA device'}: check "
            'CUDA_VISIBLE_DEVICES and that this torch is built for CUDA, or use device="cpu"'
        )
    explicit = request.partition(":")[2]
    index = int(explicit) if explicit else turn if visible.num_cuda > 1 else 0
    if index >= visible.num_cuda:
        what = f"device={request!r}" if explicit else f"local rank {local_rank}"
        raise WorldError(
            f"{what} needs at least {index + 1} CUDA devices, but this process sees {visible.num_cuda}: start at most "
            f"{visible.num_cuda} ranks on this machine, widen CUDA_VISIBLE_DEVICES, let several ranks share one "
            '(rankwise run --ranks-per-gpu), or use device="cpu"'
        )
    return f"cuda:{index}"


def default_backend(device: str, *, sharers: int = 1) -> str:
    """Return the backend for a device: on CUDA, NCCL for CUDA tensors and gloo for CPU tensors; gloo otherwise.

    NCCL refuses ranks that share a GPU: they get gloo, which copies through the CPU.
    """
    return "cpu:gloo,cuda:nccl" if device.startswith("cuda") and sharers == 1 else "gloo"
