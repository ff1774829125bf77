"""Models sharded by `fully_shard` (FSDP2), and optimizers with sharded state: creation, detection and inspection."""

from __future__ import annotations

import sys
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rankwise.checkpoint.states import is_dtensor
from rankwise.errors import ConfigError
from rankwise.guard.findings import listed
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

_MIN_UNIT_BYTES = 1 << 20  # smaller units cost more in all-gathers than they save in memory


def sharded_modules(model: nn.Module) -> list[Any]:
    """Return the modules to which `fully_shard` was applied, outer ones first."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # if it is not imported, there are none
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters of the model are sharded over ranks by `fully_shard`: DTensors, with a part on each rank."""
    return bool(sharded_modules(model))


def shards_state(optimizer: Any) -> bool:
    """Whether each rank has only a part of the optimizer's state.

    This holds for a `ZeroRedundancyOptimizer` (whole tensors, each on one rank; it has `consolidate_state_dict`), and
    for any optimizer over parameters of `fully_shard` (a part of each tensor on each rank, as DTensors).
    """
    groups = getattr(optimizer, "param_groups", ())
    return hasattr(optimizer, "consolidate_state_dict") or any(is_dtensor(p) for g in groups for p in g["params"])


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, over the same memory; any other tensor unchanged."""
    part: torch.Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return part


@dataclass(slots=True, kw_only=True)
class Prepared:
    """The decisions of `prepare` for a model, for later use.

    Attributes:
        strategy: "none" on one rank, "ddp", "zero1" or "fsdp".
        group: the process group, None for the default one.
        find_unused: whether parameters may lack a gradient.
        before: the parameters that `fully_shard` has replaced, with their names; by id.
        reduced: the parameters whose gradients DistributedDataParallel waits for, in its order.
    """

    strategy: str
    group: Any = None
    find_unused: bool = False
    before: Mapping[int, tuple[weakref.ref[Any], str]] = field(default_factory=dict)
    reduced: tuple[str, ...] = ()


_prepared: weakref.WeakKeyDictionary[nn.Module, Prepared] = weakref.WeakKeyDictionary()


def note_prepared(model: nn.Module, prepared: Prepared) -> None:
    """Remember the decisions for a model."""
    _prepared[model] = prepared


def prepared_as(model: nn.Module) -> Prepared:
    """Return the decisions for a model; defaults for a model wrapped elsewhere."""
    return _prepared.get(model) or Prepared(strategy="none")


def shard(
    model: nn.Module,
    world: World,
    *,
    group: Any,
    units: Sequence[nn.Module] | None,
    find_unused: bool,
    compile_options: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Prepared:
    """Shard a module in place, unit by unit, on the device, after making it equal to rank 0's. Every rank calls it.

    Args:
        model: plain, on any device: no rank ever has more than its shards and one unit on its own device.
        world: this rank's world.
        group: its process group, None for the default one.
        units: modules that are gathered and freed together; None = the members of its ModuleLists and Sequentials. The
            remaining parameters form a unit of their own.
        find_unused: whether ranks may use different parameters: then all is one unit, which every rank gathers.
        compile_options: options for `torch.compile`, applied to each unit; None does not compile.
        options: for `fully_shard`.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(cast("dist.ProcessGroup", group or dist.group.WORLD), world.device.type)
    if strided := [name for name, p in model.named_parameters() if not p.is_contiguous()]:
        raise ConfigError(
            f"strategy='fsdp' shards contiguous parameters, but these are not: {listed(strided)}: call "
            "model.to(memory_format=torch.contiguous_format) before, where channels_last is meant (batches may keep "
            "it), or use strategy='zero1'"
        )
    before = {id(p): (weakref.ref(p), name) for name, p in model.named_parameters()}
    chosen = [] if find_unused else units_of(model) if units is None else list(units)
    if compile_options is not None:
        for unit in chosen or [child for child in model.children() if any(True for _ in child.parameters())]:
            unit.compile(**compile_options)  # in place: the parameter names stay the same
    for unit in dict.fromkeys([*chosen, model]):
        unit.to(world.device)
        _send_to_all(unit, group)
        _refuse_mixed([p for p in unit.parameters() if p.requires_grad and not is_dtensor(p)], "fsdp")
        fully_shard(unit, mesh=mesh, **options)
    for module in sharded_modules(model) if find_unused else ():
        if not hasattr(module, "set_reduce_scatter_unused_params"):
            raise ConfigError("find_unused=True with strategy='fsdp' needs a newer torch: use strategy='zero1'")
        module.set_reduce_scatter_unused_params(True)
    return Prepared(strategy="fsdp", group=group, find_unused=find_unused, before=before)


def _refuse_mixed(params: Sequence[torch.Tensor], strategy: str) -> None:
    dtypes = sorted({str(p.dtype) for p in params})
    if len(dtypes) > 1:
        raise ConfigError(
            f"strategy={strategy!r} shards parameters of one dtype together, but these have {', '.join(dtypes)}: "
            "convert them to one (precision= runs the step under autocast), or use strategy='ddp'"
        )


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return the outermost members of lists and sequences that are large and share no parameter with the others."""
    return list(_units(model, Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))))


def _units(module: nn.Module, total: Counter[int]) -> Iterator[nn.Module]:
    from torch import nn

    for child in module.children():
        inside = Counter(id(p) for _, p in child.named_parameters(remove_duplicate=False))
        large = sum(p.nbytes for p in child.parameters()) >= _MIN_UNIT_BYTES
        called = not isinstance(child, nn.ModuleList | nn.ModuleDict)
        alone = all(total[key] == count for key, count in inside.items())
        if isinstance(module, nn.ModuleList | nn.Sequential) and large and called and alone:
            yield child
        else:
            yield from _units(child, total)


def _send_to_all(module: nn.Module, group: Any) -> None:
    """Copy plain parameters and buffers from rank 0 to all ranks, as DistributedDataParallel does."""
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if not is_dtensor(tensor):
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, group=group, group_src=0)
                tensor.copy_(sent)


def check_sharded(model: nn.Module, world: World) -> None:
    """Refuse a sharded model whose gradients would not be summed over exactly the ranks of this world.

    Raises:
        ConfigError: the message says how to fix the model.
    """
    outside = [name for name, p in model.named_parameters() if p.requires_grad and not is_dtensor(p)]
    if outside and world.world_size > 1:
        raise ConfigError(
            f"{len(outside)} trainable parameters are outside what fully_shard was applied to, and are not averaged "
            f"over the ranks: {listed(outside)}. Apply it to the whole model as well, or use "
            "rankwise.prepare(model, world, strategy='fsdp')"
        )
    for name, p in model.named_parameters():
        mesh: Any = getattr(p, "device_mesh", None)
        if mesh is not None and (mesh.ndim != 1 or mesh.size() != world.world_size):
            raise ConfigError(
                f"{name} is sharded over a mesh of shape {tuple(mesh.shape)}, but this world has {world.world_size} "
                "ranks: the exact step supports only meshes of one dimension over all ranks"
            )
    for name, norm in lone_norms(model):
        if norm.track_running_stats and world.world_size > 1:
            raise ConfigError(
                f"{name} of the model tracks batch statistics, which fully_shard leaves different on each rank: use "
                "strategy='ddp' or 'zero1', sync_batchnorm=True, or another norm (GroupNorm)"
            )
    for part in sharded_modules(model):
        # Window undoes this factor, whatever its earlier value; the second name is that of older versions
        set_factor = getattr(part, "set_gradient_divide_factor", None) or part.set_reduce_scatter_divide_factor
        set_factor(float(world.world_size))


def lone_norms(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the layers whose batch statistics are those of this rank's samples alone, with their names."""
    from torch import nn

    kind = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  (the only common base)
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, kind) and not (isinstance(module, nn.SyncBatchNorm) or hasattr(module, "joins_ranks"))
    ]


@contextmanager
def unsynchronised(model: nn.Module) -> Iterator[None]:
    """Keep the gradients of a sharded model on their rank, like `no_sync` of DistributedDataParallel."""
    parts = sharded_modules(model)
    for part in parts:
        part.set_requires_gradient_sync(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_requires_gradient_sync(True, recurse=False)


def watch_gradients(model: nn.Module, note: Callable[[int], None]) -> list[Any]:
    """Call ``note(index)`` when the index-th trainable parameter gets a gradient; returns handles to `remove`.

    From the pre-forward hook of their unit on, `fully_shard` computes with gathered tensors instead of the parameters:
    the hooks are set on these.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    index = {id(p): number for number, (_, p) in enumerate(trained)}
    numbers = {name: index[id(p)] for name, p in model.named_parameters(remove_duplicate=False) if id(p) in index}
    handles: list[Any] = []
    met: set[int] = set()

    def meet(named: Iterable[tuple[str, Any]]) -> None:
        for name, p in named:
            if name in numbers and not is_dtensor(p) and id(p) not in met:
                met.add(id(p))
                handles.append(p.register_hook(lambda _, number=numbers[name]: note(number)))

    meet(model.named_parameters(remove_duplicate=False))
    parts = set(sharded_modules(model))
    for prefix, module in model.named_modules():
        if module in parts:
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, _, prefix=prefix: meet(module.named_parameters(prefix, remove_duplicate=False))
                )
            )
    return handles


@contextmanager
def watched_units(model: nn.Module) -> Iterator[tuple[list[str], list[str]]]:
    """Record the trainable parameters without a gradient, and the order in which a sharded model's units are entered.

    Meanwhile ranks may use different parameters of a unit: nothing has been compared yet. Other models: empty lists.
    """
    unused: list[str] = []
    entered: list[str] = []
    parts = {module: name for name, module in model.named_modules() if module in set(sharded_modules(model))}
    if not parts:
        yield unused, entered
        return
    used: set[int] = set()
    handles = watch_gradients(model, used.add)
    handles += [
        part.register_forward_pre_hook(lambda _, __, name=name: entered.append(name or "the model"))
        for part, name in parts.items()
    ]
    tolerant = [part for part in parts if hasattr(part, "set_reduce_scatter_unused_params")]
    for part in tolerant:
        part.set_reduce_scatter_unused_params(True, recurse=False)
    try:
        yield unused, entered
    finally:
        for handle in handles:
            handle.remove()
        for part in tolerant:
            part.set_reduce_scatter_unused_params(prepared_as(model).find_unused, recurse=False)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    unused += [name for index, name in enumerate(trained) if index not in used]


def prepare_optimizer(optimizer: Any, model: nn.Module) -> Any:
    """Return the optimizer for a prepared model: over its shards, or with a shard of the state.

    With "fsdp" the optimizer itself is returned: its parameters are replaced by the sharded ones, by name. With "zero1"
    a `ZeroRedundancyOptimizer` is returned, which has an optimizer of the same class, groups and settings for this
    rank's part; the given one shares its groups, so that a scheduler made for it still works. With "ddp", on one rank
    and for models wrapped elsewhere, it is returned unchanged. Every rank calls it.

    Args:
        optimizer: a torch optimizer over the parameters of the plain or the prepared module, without state so far; or
            a function that makes it: ``lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)``.
        model: what `prepare` returned.

    Raises:
        ConfigError: it already has state, or tensors that are not the model's.
    """
    if not hasattr(optimizer, "param_groups") and callable(optimizer):
        optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
    prepared = prepared_as(model)
    if prepared.strategy not in ("zero1", "fsdp") or hasattr(optimizer, "consolidate_state_dict"):
        return optimizer
    strange = prepared.strategy == "fsdp" and not shards_state(optimizer)
    if _has_stepped(optimizer) and (strange or prepared.strategy == "zero1"):
        raise ConfigError(
            f"the {type(optimizer).__name__} has already taken steps, and strategy={prepared.strategy!r} shards its "
            "state: make a new optimizer, prepare it, and restore its state from a checkpoint"
        )
    if strange:
        _take_shards(optimizer, model, prepared)
        optimizer.state = over_groups(optimizer, optimizer.param_groups).state
    return _zero(optimizer, prepared) if prepared.strategy == "zero1" else optimizer


def _has_stepped(optimizer: Any) -> bool:
    """Whether an optimizer has state of its steps: Adagrad has some as soon as it is made."""
    return any(state.get("step", 1) for state in optimizer.state.values())


def _take_shards(optimizer: Any, model: nn.Module, prepared: Prepared) -> None:
    now = dict(model.named_parameters())

    def shard_of(p: Any) -> Any:
        ref, name = prepared.before.get(id(p), (lambda: None, ""))
        if ref() is not p:
            raise ConfigError(
                f"the {type(optimizer).__name__} holds a tensor of shape {list(p.shape)} that was not a parameter of "
                "the model when it was prepared: make the optimizer from the parameters() of the model that prepare "
                "got or returned"
            )
        return now[name]

    for group in optimizer.param_groups:
        group["params"] = [p if is_dtensor(p) else shard_of(p) for p in group["params"]]


def over_groups(optimizer: Any, groups: list[dict[str, Any]], *, hooks: bool = True) -> Any:
    """Return an optimizer of the same class and settings over other groups, whatever its constructor's arguments."""
    if optimizer.state and not _has_stepped(optimizer):
        return type(optimizer)(groups, **optimizer.defaults)
    made: Any = object.__new__(type(optimizer))
    # not `step`, which a scheduler may have replaced by one of the old optimizer
    made.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    made.param_groups, made.state = groups, defaultdict(dict)
    if not hooks:
        made._optimizer_step_pre_hooks, made._optimizer_step_post_hooks = OrderedDict(), OrderedDict()  # noqa: SLF001
    return made


def _zero(optimizer: Any, prepared: Prepared) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def local(groups: list[dict[str, Any]], **_: Any) -> Any:
        return over_groups(optimizer, groups)

    _refuse_mixed([p for group in optimizer.param_groups for p in group["params"]], "zero1")
    zero: Any = ZeroRedundancyOptimizer(
        optimizer.param_groups, optimizer_class=cast("Any", local), process_group=prepared.group, **optimizer.defaults
    )

    def share_groups(_: Any = None) -> None:
        optimizer.param_groups = zero.param_groups

    zero.register_load_state_dict_post_hook(share_groups)  # loading creates new groups
    share_groups()
    optimizer._opt_called = True  # noqa: SLF001  (a scheduler asks it whether steps were taken: not by itself)
    return zero
