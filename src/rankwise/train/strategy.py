"""`prepare`: puts a model on its rank's device, replicated or sharded; and the decision for `strategy="auto"`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from rankwise.data.contract import BaseLoader
from rankwise.errors import ConfigError
from rankwise.guard import check_signature
from rankwise.guard.findings import listed
from rankwise.train.loaders.streams import StreamLoader
from rankwise.train.models.passes import kept_buffers, kept_random_state, seed_training
from rankwise.train.models.sharding import (
    Prepared,
    is_sharded,
    lone_norms,
    note_prepared,
    over_groups,
    prepare_optimizer,
    shard,
    units_of,
)
from rankwise.train.models.wrapped_models import (
    CommHook,
    Strategy,
    group_of,
    reduced_options,
    refuse_strategies,
    replicate,
    unwrapped,
)
from rankwise.train.step.checks import check_model, check_optimizer, check_scheduler
from rankwise.train.step.output import read_output
from rankwise.train.step.warmup import held_sample, reduced_names
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

_LOG = logging.getLogger("rankwise.train")
_FEW_SAMPLES = 16  # of one rank in one pass: batch statistics of fewer are too noisy
_SHARE = 0.5  # of a device's memory; the rest is for activations, whose size is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Inputs of a decision, besides the model itself.

    Attributes:
        optimizer: the optimizer, or the function that makes it; None: assume two moments for each parameter.
        first_pass: returns the loss of a real micro-batch, a scalar with a graph; called with the plain model, to find
            parameters without a gradient. None skips this.
        batch_per_rank: samples of one rank in one pass, None if unknown.
        memory_bytes: of this rank's device; None asks the device, or divides the machine's among its ranks.
    """

    optimizer: Any = None
    first_pass: Callable[[nn.Module], torch.Tensor] | None = None
    batch_per_rank: int | None = None
    memory_bytes: int | None = None

    @classmethod
    def of_data(cls, step_fn: Any, loader: BaseLoader, optimizer: Any, world: World) -> Evidence:
        """Return the evidence from the first step's batches. Every rank calls it with its own loader."""
        # batches taken from a stream cannot be put back: do not look at them
        batches = None if isinstance(loader, StreamLoader) else next(iter(loader), None)
        if batches is None:
            return cls(optimizer=optimizer)
        held = held_sample(batches, world)
        return cls(
            optimizer=optimizer,
            first_pass=lambda model: read_output(step_fn(model, held), held).total,
            batch_per_rank=max(len(batch.ids) for batch in batches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision; equal on all ranks.

    Attributes:
        strategy: "ddp", "zero1" or "fsdp".
        find_unused: whether the first pass left parameters of some rank without a gradient.
        few_samples: whether batch statistics would use few samples per rank.
        bytes_per_rank: estimate for each strategy: parameters, gradients, optimizer state, buckets; no activations.
        reasons: the reasons, in words.
    """

    strategy: Literal["ddp", "zero1", "fsdp"]
    find_unused: bool
    few_samples: bool
    bytes_per_rank: dict[str, int]
    reasons: tuple[str, ...]


def decide(model: nn.Module, world: World, evidence: Evidence) -> Decision:
    """Return the first of ddp, zero1 and fsdp that fits, and the other decisions; logged on the main rank.

    Every rank calls it, with the same plain model.
    """
    norms = [name for name, norm in lone_norms(model) if norm.track_running_stats]
    needed, assumed = _estimate(model, world.world_size, evidence.optimizer)
    mine = _memory_bytes(world) if evidence.memory_bytes is None else evidence.memory_bytes
    smallest = min(world.all_gather_object(mine))
    kinds: list[Literal["ddp", "zero1", "fsdp"]] = ["ddp", "zero1"] if norms else ["ddp", "zero1", "fsdp"]
    strategy = next((kind for kind in kinds if needed[kind] <= _SHARE * smallest), kinds[-1])
    sizes = ", ".join(f"{kind} {_size(num_bytes)}" for kind, num_bytes in needed.items())
    reasons = [
        f"parameters, gradients and optimizer state{assumed} take about {sizes} a rank, activations not counted, and "
        f"may use {_SHARE:.0%} of the smallest device's {_size(smallest)}"
        + ("" if needed[strategy] <= _SHARE * smallest else f": no allowed strategy fits, {strategy} is the smallest")
    ]
    batches = [size for size in world.all_gather_object(evidence.batch_per_rank) if size is not None]
    few = bool(norms and batches and min(batches) < _FEW_SAMPLES)
    if norms:
        reasons.append(f"{listed(norms)} tracks batch statistics, which fsdp would leave different on each rank")
    if few:
        reasons.append(f"batch statistics of {min(batches)} samples a rank are noisy: sync_batchnorm=True")
    unused = _unused(model, world, evidence) if strategy != "fsdp" else None
    if unused:
        reasons.append(f"the first pass left {listed(unused)} without a gradient: find_unused=True")
    elif unused is None:
        reasons.append("unused parameters were not looked for")
    decision = Decision(
        strategy=strategy,
        find_unused=bool(unused),
        few_samples=few,
        bytes_per_rank=needed,
        reasons=tuple(reasons),
    )
    if world.is_main and world.world_size > 1:
        _LOG.warning("strategy='auto' chooses %s: %s", strategy, "; ".join(reasons))
    return decision


def _unused(model: nn.Module, world: World, evidence: Evidence) -> list[str] | None:
    """Return the trainable parameters without a gradient in the first pass of any rank; None: unknown."""
    if not all(world.all_gather_object(evidence.first_pass is not None)):
        return None
    assert evidence.first_pass is not None
    model.to(world.device)
    with kept_buffers(model), kept_random_state():
        (evidence.first_pass(model) * 0).backward()  # type: ignore[no-untyped-call]
    mine = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    model.zero_grad(set_to_none=True)
    return list(dict.fromkeys(name for found in world.all_gather_object(mine) for name in found))


def _estimate(model: nn.Module, world_size: int, optimizer: Any) -> tuple[dict[str, int], str]:
    """Return the bytes per rank for each strategy, and the assumptions, in words."""
    every = sum(p.nbytes for p in model.parameters())
    trained = [p.nbytes for p in model.parameters() if p.requires_grad]
    grads, ratio = sum(trained), _state_ratio(optimizer)
    assumed = " (assumed two moments each)" if ratio is None else ""
    ratio = 2.0 if ratio is None else ratio
    units = [sum(p.nbytes for p in unit.parameters()) for unit in units_of(model)]
    rest = every - sum(units)
    # a rank of zero1 holds whole tensors; DistributedDataParallel keeps a second copy of the gradients, in its buckets;
    # of fsdp the unit that is gathered is whole, with its gradients, and so is what lies outside all units
    part = max(ratio * grads / world_size, ratio * max(trained, default=0))
    return {
        "ddp": int(every + 2 * grads + ratio * grads),
        "zero1": int(every + 2 * grads + part),
        "fsdp": int((every + grads + ratio * grads) / world_size + 2 * (rest + max(units, default=0))),
    }, assumed


def _state_ratio(optimizer: Any) -> float | None:
    """Return bytes of state per byte of a parameter, measured with one step of a tiny one; None if that fails."""
    import torch

    tiny = torch.nn.Parameter(torch.zeros(16, 16))
    tiny.grad = torch.zeros_like(tiny)
    try:
        if hasattr(optimizer, "param_groups"):
            made = over_groups(optimizer, [{**optimizer.param_groups[0], "params": [tiny]}], hooks=False)
        else:
            made = optimizer([tiny])
        made.step()
        held = [value for value in made.state[tiny].values() if isinstance(value, torch.Tensor) and value.ndim]
    except Exception:  # noqa: BLE001  (an optimizer of the user's that wants more than this)
        return None
    return sum(value.nbytes for value in held) / tiny.nbytes


def _memory_bytes(world: World) -> int:
    import torch

    if world.device.type == "cuda":
        return int(torch.cuda.get_device_properties(world.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world.local_world_size


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"


def prepare(
    model: nn.Module,
    world: World | None = None,
    *,
    strategy: Strategy = "ddp",
    static_graph: bool | None = None,
    find_unused: bool | None = None,
    bucket_mb: float | None = None,
    comm_hook: CommHook | None = None,
    compile: bool | Mapping[str, Any] = False,  # noqa: A002  (the field's word)
    units: Sequence[nn.Module] | None = None,
    sync_batchnorm: bool | Literal["auto"] = False,
    evidence: Evidence | None = None,
    **options: Any,
) -> nn.Module:
    """Return the model on its rank's device, with replicas or shards connected; the same call for any world size.

    It guarantees the right order: first the device (a model that is moved after wrapping silently loses its gradient
    hooks), then batch statistics, wrapper and compiler. On one rank nothing is wrapped: the model itself is returned.
    Every rank of the world must call it: rank 0's weights are sent to all.

    Afterwards the global generators of `random`, NumPy and torch differ between ranks: otherwise all ranks would drop
    the same units and add the same noise. Those of rank 0 are unchanged, so that a model built later has the same
    initial weights at any number of ranks; each other rank is seeded by (the world's seed, rank). Draw values that must
    be equal on all ranks before, or from ``world.generator("what")``. A random state restored later wins.

    Args:
        model: the module, not yet wrapped.
        world: this rank's world; `World.current()` if None.
        strategy: "ddp": everything on each rank (DistributedDataParallel). "zero1": the same, but each rank has only a
            part of the optimizer's state. "fsdp": each rank has a part of parameters, gradients and state
            (`fully_shard`), and ``model`` itself is returned, with other parameters. For both, pass the optimizer to
            `prepare_optimizer`. "auto" takes the first of these that fits the device, and logs the reason.
        static_graph: for DistributedDataParallel: every step uses the same parameters.
        find_unused: whether a step may leave parameters without a gradient, different ones on each rank.
        bucket_mb: size of gradient buckets, for DistributedDataParallel.
        comm_hook: format of gradients in transit: "fp16" or "bf16" halves them, "powersgd" sends low-rank factors, or
            your own hook, ``hook(None, bucket)``; alone, or as ``(state, hook)``. With "fsdp" the first two only.
        compile: pass the result through torch.compile (with "fsdp" its units), with these options if it is a mapping.
        units: parts of the model that "fsdp" gathers one at a time; None = the members of its ModuleLists and
            Sequentials that are large enough.
        sync_batchnorm: batch statistics over the samples of all ranks, as one rank with the whole micro-batch has them:
            True requires layers with such statistics, "auto" replaces existing ones. Costs two collectives per layer.
        evidence: inputs for "auto" besides the model; see `Evidence`.
        **options: further ones of DistributedDataParallel, or of `fully_shard` (``mp_policy=``, ...).

    Raises:
        ConfigError: the model is already wrapped, or an option is set by this function, or unknown to the strategy.
        GuardError: names, shapes or dtypes of the model differ between ranks.
    """
    world = joined_world(world, "prepare")
    _refuse_unfit(model, world)
    if strategy not in ("ddp", "zero1", "fsdp", "auto"):
        raise ConfigError(f"strategy must be 'ddp', 'zero1', 'fsdp' or 'auto', got {strategy!r}")
    if strategy == "auto":
        decision = decide(model, world, evidence or Evidence())
        strategy, find_unused = decision.strategy, find_unused or decision.find_unused or None
        sync_batchnorm = sync_batchnorm or ("auto" if decision.few_samples else False)
    own = {"static_graph": static_graph, "find_unused_parameters": find_unused, "bucket_cap_mb": bucket_mb}
    options = _checked_options(strategy, options, own, comm_hook, units)
    compiler = None if compile is False else {} if compile is True else dict(compile)
    from rankwise.train.models.batch_norm import join_batch_norms

    model = join_batch_norms(model, world, wish=sync_batchnorm)
    check_signature(model, world)  # names the differences: a wrapper would leave ranks waiting for each other
    if world.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        prepared, record = model.to(world.device), Prepared(strategy="none")
    elif strategy == "fsdp":
        find = bool(options.pop("find_unused_parameters", False))
        options.update(reduced_options(comm_hook, options))
        group = group_of(world)
        record = shard(
            model, world, group=group, units=units, find_unused=find, compile_options=compiler, options=options
        )
        prepared = model
    else:
        prepared = replicate(model.to(world.device), world, options, comm_hook)
        record = Prepared(strategy=strategy, group=group_of(world), reduced=reduced_names(prepared))
    if compiler is not None and record.strategy != "fsdp":
        import torch

        prepared = cast("nn.Module", torch.compile(prepared, **compiler))
    note_prepared(prepared, record)
    if world.rank:
        seed_training(world, "prepare")
    return prepared


def _refuse_unfit(model: nn.Module, world: World) -> None:
    if world.backend == "jax":
        raise ConfigError(
            "prepare wraps a torch module, but this world, of a JAX program (World.init_jax), has no process group of "
            "torch: to use both, enter rankwise.bind() first and call world.init_jax() inside it"
        )
    refuse_strategies(model)
    if unwrapped(model) is not model or is_sharded(model):
        raise ConfigError(f"prepare needs a plain module, got a {type(model).__name__}: pass the module inside it")
    if empty := [name for name, held in (*model.named_parameters(), *model.named_buffers()) if held.is_meta]:
        raise ConfigError(
            f"prepare needs a model with weights, but {listed(empty)} of it are on the meta device, which has shapes "
            "only: build the model outside torch.device('meta'); or call model.to_empty(device='cpu') and set all "
            "weights (load_state_dict), before you make the optimizer"
        )


def _checked_options(
    strategy: str, options: Mapping[str, Any], own: Mapping[str, Any], comm_hook: Any, units: Any
) -> dict[str, Any]:
    """Return the wrapper's options together with those that `prepare` names itself, if they are not None."""
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    own = {name: value for name, value in own.items() if value is not None}
    if doubled := sorted(own.keys() & options.keys()):
        raise ConfigError(f"{', '.join(doubled)} of DistributedDataParallel is given under two names")
    options = {**options, **own}
    decided = sorted({"device_ids", "output_device", "process_group", "module", "mesh"} & set(options))
    if decided:
        raise ConfigError(f"prepare decides {', '.join(decided)} from the world; leave them out")
    kind: Any = DistributedDataParallel
    if strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard  # takes a second

        kind = fully_shard
    known = [name for name in inspect.signature(kind).parameters if name not in ("self", "module")]
    known += ["find_unused_parameters"] if strategy == "fsdp" else []
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"{kind.__name__} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    if units is not None and strategy != "fsdp":
        raise ConfigError(
            f"units= are only valid with strategy='fsdp', which gathers them one at a time; this is {strategy!r}"
        )
    if isinstance(comm_hook, str) and comm_hook not in ("fp16", "bf16", "powersgd"):
        raise ConfigError(f"comm_hook must be 'fp16', 'bf16', 'powersgd' or a hook, got {comm_hook!r}")
    if strategy == "fsdp" and comm_hook not in (None, "fp16", "bf16"):
        raise ConfigError(
            "fully_shard does not accept hooks of DistributedDataParallel: comm_hook must be 'fp16' or 'bf16' there"
        )
    return options


def wrap_options(
    model: nn.Module, strategy: Strategy | None, options: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the options of `prepare` for a plain module, None for a model that is already wrapped.

    Raises:
        ConfigError: there are options for a model that is already wrapped, or it is no module.
    """
    refuse_strategies(model)
    plain = unwrapped(model) is model and not is_sharded(model)
    if (strategy or options) and not plain:
        raise ConfigError("strategy= and ddp= are for wrapping a plain module, but this model is already wrapped")
    return {"strategy": strategy or "ddp", **(options or {})} if plain else None


def prepare_training(
    model: nn.Module,
    optimizer: Any,
    scheduler: Any,
    *,
    world: World,
    options: Mapping[str, Any] | None,
    evidence: Evidence | None,
) -> tuple[nn.Module, Any, Any]:
    """Return checked model, optimizer and scheduler for training; calls functions that were given to make them.

    Args:
        model: plain, or already wrapped if `options` is None.
        optimizer: see `prepare_optimizer`.
        scheduler: a scheduler, or a function of the optimizer that makes it.
        world: this rank's world.
        options: of `prepare`.
        evidence: for strategy="auto".
    """
    if options is not None:
        model = prepare(model, world, evidence=evidence, **options)
    optimizer = prepare_optimizer(optimizer, model)
    if callable(scheduler) and not hasattr(scheduler, "step"):
        scheduler = scheduler(optimizer)
    check_model(model, world)
    check_optimizer(model, optimizer, world)
    check_scheduler(scheduler, optimizer)
    return model, optimizer, scheduler
