"""`Platform`: where a task runs and how its ranks meet, with ddpw's fields and defaults, and a rank's place on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError
from rankwise.launch.hardware import num_visible_gpus

DEFAULT_LOGS = "./.output/logs"


class Device(Enum):
    """The device a rank computes on, or "slurm" if Slurm starts the ranks."""

    CPU = "cpu"
    GPU = "gpu"
    SLURM = "slurm"
    MPS = "mps"

    @staticmethod
    def from_str(device: str) -> Device:
        """Return the device of that name; upper and lower case are equal.

        Raises:
            ConfigError: there is no such device.
        """
        try:
            return Device(device.lower())
        except ValueError:
            names = ", ".join(member.value for member in Device)
            raise ConfigError(f"device must be one of {names}, got {device!r}") from None


@dataclass(frozen=True, slots=True)
class Platform:
    """Where a task runs and how its ranks meet. ddpw's fields are positional, as in ddpw: `Platform("job", "cpu")`.

    Attributes:
        name: name of the job.
        device: "cpu", "gpu", "mps" or "slurm", or a `Device`.
        partition: Slurm only.
        n_nodes: number of nodes, Slurm only.
        n_gpus_per_node: number of ranks, on CPU too; prefer `num_ranks` there.
        n_cpus_per_node: Slurm only; divisible by `n_gpus_per_node`.
        mem_per_node: GB, Slurm only.
        spawn_method: ranks are always fresh interpreters ("spawn"); "fork" and "forkserver" are accepted, but only
            print a message, once.
        ipc_protocol: how ranks meet. "tcp": at a port of rank 0. "file": through a file in a folder that all ranks see,
            for machines where rank 0 may not listen on a port.
        master_addr: where rank 0 listens. With "file": the folder, created if missing; "localhost" then means a folder
            of the launch itself on one machine, and `console_logs` on Slurm.
        master_port: its port; None takes a free one and holds it until the end. Not with "file".
        ipc_groups: [] is one group of all ranks; None is no group at all; a list of lists of global ranks makes one
            group for each list, with every rank in exactly one.
        backend: torch's name of the backend; None: NCCL on GPUs, gloo elsewhere.
        seed: seeds `random`, NumPy and torch with the same value on every rank.
        timeout_min: time limit of the job, Slurm only.
        slurm_additional_parameters: passed through to submitit, Slurm only.
        console_logs: folder for the ranks' output: `attempt-<n>/rank-<r>.out` and `.err` for every attempt on one
            machine, submitit's files on Slurm. None: no files; not allowed on Slurm.
        verbose: every rank prints status messages, not only the parent.
        upon_finish: called once, without arguments, after every rank has succeeded: by the caller of `Wrapper.start` on
            one machine, on the job's first node on Slurm.
        num_ranks: number of ranks per node; None takes `n_gpus_per_node`. On Slurm these are CPU ranks, and the job
            requests no GPU.
        max_requeues: how often the job may be requeued after its ranks have saved at a preemption or the time limit, or
            after a node is lost; 0: never. Slurm only.
        ipc_timeout_s: how long ranks wait for each other.

    Raises:
        ConfigError: a value is invalid.
    """

    name: str = "ddpw"
    device: Device | str = Device.GPU
    partition: str = "general"
    n_nodes: int = 1
    n_gpus_per_node: int = 1
    n_cpus_per_node: int = 1
    mem_per_node: int = 32
    spawn_method: str | None = "spawn"
    ipc_protocol: str = "tcp"
    master_addr: str = "localhost"
    master_port: int | str | None = None
    ipc_groups: list[list[int]] | None = field(default_factory=list)
    backend: str | None = None
    seed: int = 1889
    timeout_min: int = 2880
    slurm_additional_parameters: dict[str, Any] | None = None
    console_logs: str | None = DEFAULT_LOGS
    verbose: bool | None = True
    upon_finish: Callable[[], Any] | None = None
    num_ranks: int | None = field(default=None, kw_only=True)
    ipc_timeout_s: float = field(default=600.0, kw_only=True)
    max_requeues: int = field(default=100, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.device, str):
            object.__setattr__(self, "device", Device.from_str(self.device))
        self._check_counts()
        if self.spawn_method not in {None, "spawn", "fork", "forkserver"}:
            raise ConfigError(f"spawn_method must be spawn, fork, forkserver or None, got {self.spawn_method!r}")
        if self.ipc_protocol not in {"tcp", "file"}:
            raise ConfigError(f"ipc_protocol must be tcp or file, got {self.ipc_protocol!r}")
        self._check_meeting()
        if self.device is Device.SLURM and self.console_logs is None:
            raise ConfigError("console_logs=None: device='slurm' needs a folder that the nodes share")
        named = sorted(rank for group in self.ipc_groups or [] for rank in group)
        if self.ipc_groups and named != list(range(self.world_size)):
            raise ConfigError(
                f"ipc_groups must name each of the ranks 0 to {self.world_size - 1} exactly once, got {self.ipc_groups}"
            )

    def _check_meeting(self) -> None:
        port = self.master_port
        if port is not None and not (str(port).isdecimal() and 0 < int(port) < 1 << 16):
            raise ConfigError(f"master_port must be between 1 and 65535, got {self.master_port!r}")
        if self.ipc_protocol != "file":
            return
        if port is not None:
            raise ConfigError(f"ipc_protocol='file' uses no port, got master_port={port!r}: leave it out")
        if self.master_addr != "localhost" and "/" not in self.master_addr and not self.master_addr.startswith("."):
            raise ConfigError(
                f"ipc_protocol='file' needs a folder shared by all ranks as master_addr, got {self.master_addr!r}: "
                "give its path, with a slash in it, or leave it out"
            )
        if self.master_addr != "localhost" and Path(self.master_addr).is_file():
            raise ConfigError(f"ipc_protocol='file' needs a folder, but master_addr={self.master_addr!r} is a file")

    def _check_counts(self) -> None:
        for name in ("n_nodes", "n_gpus_per_node", "n_cpus_per_node", "mem_per_node", "timeout_min"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_ranks is not None and self.num_ranks < 1:
            raise ConfigError(f"num_ranks must be at least 1, got {self.num_ranks}")
        if self.max_requeues < 0:
            raise ConfigError(f"max_requeues must be at least 0, got {self.max_requeues}")
        if self.num_ranks is not None and self.n_gpus_per_node not in {1, self.num_ranks}:
            raise ConfigError(f"num_ranks={self.num_ranks} and n_gpus_per_node={self.n_gpus_per_node} differ: give one")
        ranks = self.num_ranks or self.n_gpus_per_node
        if self.device is Device.SLURM and self.n_cpus_per_node % ranks:
            raise ConfigError(
                f"n_cpus_per_node={self.n_cpus_per_node} cannot be split evenly among the {ranks} ranks of a node"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return self.n_nodes * (self.num_ranks or self.n_gpus_per_node)

    @property
    def requires_ipc(self) -> bool:
        """Whether ranks communicate: there is more than one rank, and `ipc_groups` is not None."""
        return self.world_size > 1 and self.ipc_groups is not None

    def store_file(self, launch: str) -> Path | None:
        """Return the file through which the ranks of a launch meet; None: a port, or a folder of the launch itself."""
        if self.ipc_protocol != "file" or (self.device is not Device.SLURM and self.master_addr == "localhost"):
            return None
        folder = self.console_logs if self.master_addr == "localhost" else self.master_addr
        assert folder is not None
        return Path(folder).absolute() / f"rankwise-meeting-{launch}"

    def check_machine(self) -> None:
        """Check that this machine has what the platform asks for.

        Raises:
            ConfigError: fewer GPUs than ranks, several nodes, or MPS with several ranks or off macOS.
        """
        if self.n_nodes > 1:
            raise ConfigError(
                f"n_nodes={self.n_nodes} is only valid with device='slurm'; without Slurm use rankwise run"
            )
        gpus = num_visible_gpus() if self.device is Device.GPU else 0
        if self.device is Device.GPU and gpus < self.world_size:
            raise ConfigError(
                f"device='gpu' with {self.world_size} rank(s) needs as many GPUs, {gpus} are visible here (driver, "
                "CUDA_VISIBLE_DEVICES); device='cpu' runs anywhere"
            )
        if self.device is Device.MPS and (self.world_size > 1 or sys.platform != "darwin"):
            raise ConfigError(
                f"device='mps' supports one rank on macOS, got {self.world_size} rank(s) on {sys.platform}"
            )

    def print(self) -> None:
        """Print every field and the number of ranks, one per line."""
        lines = [f"{item.name:28} {getattr(self, item.name)}" for item in fields(self)]
        print("\n".join([*lines, f"{'world_size':28} {self.world_size}"]))  # noqa: T201


def make_folder(folder: Path) -> None:
    """Create the folder in which ranks meet, accessible to its owner only.

    Raises:
        ConfigError: it cannot be created, or is not writable.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"ipc_protocol='file': the folder {folder} cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"ipc_protocol='file': the folder {folder} is not writable; give another one (master_addr)")


_DEVICES = {Device.CPU: "cpu", Device.GPU: "cuda", Device.MPS: "mps"}


def run_task(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], platform: Platform) -> Any:
    """Call a task on this rank; every rank of the platform calls it."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    given = {**kwargs, "global_rank": rank, "local_rank": local_rank, "platform": platform}
    if platform.ipc_groups is None:
        _prepare_alone(platform, local_rank)
        return fn(*args, **given, group=None)
    from rankwise.world import bind

    with bind(
        device=_device(platform),
        backend=platform.backend,
        seed=platform.seed,
        timeout=platform.ipc_timeout_s,
        always_group=True,
    ) as world:
        if platform.verbose:
            print(f"rankwise: rank {rank} of {world.world_size} on {world.device}, {world.backend}", flush=True)  # noqa: T201
        return fn(*args, **given, group=_group_of(rank, platform))


def _device(platform: Platform) -> str:
    """Return the device to bind to; a Slurm job with GPUs never falls back to the CPU."""
    if platform.device is Device.SLURM:
        return "cuda" if platform.num_ranks is None else "auto"
    assert isinstance(platform.device, Device)
    return _DEVICES[platform.device]


def _group_of(rank: int, platform: Platform) -> Any:
    """Create every group, as torch requires of all ranks, and return the group of this rank."""
    import torch.distributed as dist

    mine = dist.group.WORLD
    for ranks in platform.ipc_groups or []:
        group = dist.new_group(ranks, timeout=timedelta(seconds=platform.ipc_timeout_s))
        if rank in ranks:
            mine = group
    return mine


def _prepare_alone(platform: Platform, local_rank: int) -> None:
    """Set seeds and device of a rank without a process group."""
    import torch

    from rankwise.world import seed_generators
    from rankwise.world.devices import choose_device, visible_devices

    seed_generators(platform.seed)
    device = choose_device(_device(platform), local_rank=local_rank, world_size=1, visible=visible_devices())
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
