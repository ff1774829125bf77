"""Chooses device and cores of a pipeline of crops, and checks that they agree with the rest of the process."""

from __future__ import annotations

import enum
import functools
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.feed.options import RankPlace, find_place
from rankwise.errors import MissingExtraError
from rankwise.launch.hardware import num_usable_cores, read_topology

if TYPE_CHECKING:
    import torch

    from rankwise.world import World

_LOG = logging.getLogger("rankwise.crops")
_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts:
    """Facts about CUDA from torch.

    Attributes:
        count: number of devices visible to this process.
        current: the device that the process already uses; None = it has not used CUDA yet.
    """

    count: int = 0
    current: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlace(RankPlace):
    """The torch device and rank of a pipeline; the number of ranks only from `place_in_world`.

    Attributes:
        sharers: ranks that share the device, this one included.
    """

    device: torch.device | None
    sharers: int = 1

    def pinning(self, strategy: NumaStrategy, node: int) -> Callable[[], None]:
        """Return a function that binds the calling thread to the cores that a strategy and its node choose.

        Raises:
            InvalidArgument: there is no such strategy, or it does not allow this node.
        """
        cores = cores_here(chosen_strategy(strategy, node), node, device_node=self._numa_node)
        return functools.partial(pin_thread, cores)

    @property
    def _numa_node(self) -> int:
        """NUMA node of the device, -1 if unknown."""
        if self.device is None or self.device.type != "cuda":
            return -1
        import torch

        facts = torch.cuda.get_device_properties(self.device)
        parts = [getattr(facts, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
        if min(parts) < 0:
            return -1  # this torch version does not provide it
        return gpu_node(f"{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0")


def bind_device(
    wanted: int | str | torch.device | None,
    *,
    environ: Mapping[str, str] | None = None,
    cuda: CudaFacts | None = None,
) -> DevicePlace:
    """Return the place of a pipeline, after a check that the process does not use another device.

    Args:
        wanted: `Config.device`.
        environ: the environment; None = the process's own.
        cuda: facts about CUDA; None = ask torch.

    Raises:
        InvalidArgument: the device does not exist, or the process already uses another one.
        MissingExtraError: a device was asked for and torch is not installed.
    """
    environ = os.environ if environ is None else environ
    place = DevicePlace.launched(environ)
    if find_spec("torch") is None:
        if wanted not in (None, "numpy"):
            raise MissingExtraError(
                f"device={wanted!r} needs torch: pip install 'rankwise[train]', or device=\"numpy\""
            )
        return place
    cuda = _ask_torch() if cuda is None else cuda
    device = None if wanted == "numpy" else _chosen(wanted, environ, cuda)
    from rankwise.world import World

    world = World.current()
    if world.world_size > 1:
        place = DevicePlace(device=None, rank=world.rank, local_world_size=world.local_world_size)
    if device is None or device.type != "cuda":
        return replace(place, device=device)
    _cross_check(device.index or 0, wanted, environ, cuda)
    return replace(place, device=device, sharers=-(-place.local_world_size // max(1, cuda.count)))


def place_in_world(wanted: str | torch.device | None, world: World | None) -> DevicePlace:
    """Return the place of a pipeline in a world; an explicitly chosen device is checked as in `bind_device`.

    Args:
        wanted: "auto" = the world's device (NumPy arrays in a JAX program), any device of torch, None = NumPy arrays.
        world: the world; None = the current one. Without torch the launcher's variables give the rank.

    Raises:
        InvalidArgument: the device does not exist, or the process already uses another one.
        MissingExtraError: a device was asked for and torch is not installed.
    """
    chosen = wanted is not None and not (isinstance(wanted, str) and wanted == "auto")
    place = find_place(world, bind_device(wanted).device if chosen else wanted)
    num_devices = _ask_torch().count if place.device is not None and place.device.type == "cuda" else 0
    return DevicePlace(**asdict(place), sharers=-(-place.local_world_size // num_devices) if num_devices else 1)


def _ask_torch() -> CudaFacts:
    import torch

    if not torch.cuda.is_available():
        return CudaFacts()
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return CudaFacts(count=torch.cuda.device_count(), current=current)


def _chosen(wanted: int | str | torch.device | None, environ: Mapping[str, str], cuda: CudaFacts) -> torch.device:
    import torch

    if wanted is None:
        return _own_device(environ, cuda)
    try:
        device = torch.device("cuda", wanted) if isinstance(wanted, int) else torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(
            f'device must be the number of a CUDA device, a torch device or "numpy"; got {wanted!r}: {error}'
        ) from error
    if device.type != "cuda":
        return device
    index = device.index if device.index is not None else cuda.current or 0
    if index >= cuda.count:
        raise InvalidArgument(
            f"device={wanted!r} is CUDA device {index}, this process sees {cuda.count}: check CUDA_VISIBLE_DEVICES and "
            'that this torch is built for CUDA, or use device="cpu" (device=None uses what is available)'
        )
    return torch.device("cuda", index)


def _own_device(environ: Mapping[str, str], cuda: CudaFacts) -> torch.device:
    """Return the world's device if bound, else the CUDA device in use, else that of the local rank, else the CPU."""
    import torch

    from rankwise.world import World

    world = World.current()
    if world.backend == "jax":  # its device is JAX's, not torch's
        return torch.device("cpu")
    bound: torch.device = world.device
    if world.backend != "none" or bound.type != "cpu" or not cuda.count:
        return bound
    index = cuda.current
    if index is None:
        local = environ.get("LOCAL_RANK", "")
        index = int(local) % cuda.count if local.isdecimal() else 0
    return torch.device("cuda", index)


def _cross_check(index: int, wanted: object, environ: Mapping[str, str], cuda: CudaFacts) -> None:
    explicit = wanted is not None
    if explicit and cuda.current is not None and cuda.current != index:
        raise InvalidArgument(
            f"Config.device={wanted!r} but the process already uses CUDA device {cuda.current}: pass the same "
            "number to torch.cuda.set_device and to Config(device=...)"
        )
    local = environ.get("LOCAL_RANK", "")
    if local.isdecimal() and int(local) != index and cuda.count > 1:
        _warn_once(
            f"LOCAL_RANK is {local} but the pipeline feeds CUDA device {index}: other ranks may feed it too; pass "
            "device=local_rank, or omit device= inside rankwise.bind()",
        )
    elif not local and not explicit and cuda.count > 1:
        _warn_once(
            f"this process sees {cuda.count} CUDA devices, but none was chosen: the pipeline feeds device {index}; "
            "set Config(device=...)",
        )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


class NumaStrategy(enum.IntEnum):
    """Cores of reader threads: `AUTO` = on the node of the GPU, `PIN_TO` = on a given node, `DISABLED` = anywhere."""

    AUTO = 0
    DISABLED = 1
    PIN_TO = 2


def chosen_strategy(strategy: NumaStrategy | int, node: int) -> NumaStrategy:
    """Return a strategy, after a check.

    Raises:
        InvalidArgument: there is no such strategy, or it does not allow this node.
    """
    try:
        chosen = NumaStrategy(strategy)
    except ValueError:
        known = ", ".join(f"NumaStrategy.{each.name}" for each in NumaStrategy)
        raise InvalidArgument(f"numa_strategy must be one of {known}; got {strategy!r}") from None
    if (chosen is NumaStrategy.PIN_TO) != (node >= 0):
        raise InvalidArgument(
            f"numa_node must be the node for NumaStrategy.PIN_TO and -1 otherwise; got {node} with {chosen.name}"
        )
    return chosen


def gpu_node(pci_bus_id: str, folder: Path = _PCI) -> int:
    """Return the NUMA node of a GPU, -1 if the system does not provide it."""
    try:
        return int((folder / pci_bus_id.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def cores_here(strategy: NumaStrategy, node: int, *, device_node: int) -> frozenset[int] | None:
    """Return the cores of this machine for the reader's threads; None = do not bind them, and the log says why."""
    if strategy is NumaStrategy.DISABLED:
        return None
    wanted = node if strategy is NumaStrategy.PIN_TO else device_node
    nodes = read_topology().nodes
    if len(nodes) < 2:
        why = "this process uses one NUMA node, or the machine does not show its nodes"
    elif wanted < 0:
        why = "the node of the device is unknown; set numa_strategy=PIN_TO with numa_node="
    elif wanted not in nodes:
        why = f"this process may use no core of NUMA node {wanted}, only of {sorted(nodes)}"
    else:
        return frozenset(nodes[wanted])
    _LOG.info("reader threads are not pinned to a NUMA node: %s", why)
    return None


def pin_thread(cores: frozenset[int] | None) -> None:
    """Bind the calling thread to cores; memory that it touches first is then local to them. None does nothing."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def max_concurrency() -> int:
    """Return the number of cores that this process may use: from its mask, and the quota of its container."""
    return num_usable_cores()
