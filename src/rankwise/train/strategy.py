"""`prepare`: a model on its rank's device, replicated or sharded; and how `strategy="auto"` decides between these."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from rankwise.data.contract import BaseLoader
from rankwise.errors import ConfigError
from rankwise.guard import check_signature
from rankwise.train.checks import check_model, check_optimizer, check_scheduler
from rankwise.train.output import read_output
from rankwise.train.sharding import (
    Prepared,
    is_sharded,
    note_prepared,
    over_groups,
    prepare_optimizer,
    shard,
    units_of,
)
from rankwise.train.streams import StreamLoader
from rankwise.train.warmup import held_sample, kept_buffers, kept_random_state
from rankwise.train.wrapped_models import (
    CommHook,
    Strategy,
    group_of,
    reduced_options,
    refuse_strategies,
    replicate,
    seed_training,
    unwrapped,
)
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Decision", "Evidence", "decide", "prepare", "prepare_training", "wrap_options"]

_LOG = logging.getLogger("rankwise.train")
_FEW_SAMPLES = 16  # of one rank in one pass: batch statistics of fewer are noise
_SHARE = 0.5  # of a device's memory; the rest is left to activations, which nobody knows before
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a decision may rest on, beside the model itself.

    Attributes:
        optimizer: the optimizer, or the function that makes it; None: two moments for each parameter are assumed.
        first_pass: returns the loss of a real micro-batch, a scalar with a graph; called with the plain model, to see
            which parameters get no gradient. None looks at nothing.
        batch_per_rank: samples of one rank in one pass, None where that is unknown.
        memory_bytes: of this rank's device; None asks the device, or shares the machine's among its ranks.
    """

    optimizer: Any = None
    first_pass: Callable[[nn.Module], torch.Tensor] | None = None
    batch_per_rank: int | None = None
    memory_bytes: int | None = None

    @classmethod
    def of_data(cls, step_fn: Any, loader: BaseLoader, optimizer: Any, world: World) -> Evidence:
        """Return what the first step's batches tell. Every rank calls it with its own loader."""
        # what a stream has given is gone: it is not looked at
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
    """What was decided; equal on all ranks.

    Attributes:
        strategy: "ddp", "zero1" or "fsdp".
        find_unused: the first pass left parameters of some rank without a gradient.
        few_samples: batch statistics would be taken over few samples of one rank.
        bytes_per_rank: estimate for each strategy: parameters, gradients, optimizer state, buckets; no activations.
        reasons: in words.
    """

    strategy: Literal["ddp", "zero1", "fsdp"]
    find_unused: bool
    few_samples: bool
    bytes_per_rank: dict[str, int]
    reasons: tuple[str, ...]


def decide(model: nn.Module, world: World, evidence: Evidence) -> Decision:
    """Return the first of ddp, zero1 and fsdp that fits, and what else the evidence asks for; said on the main rank.

    Every rank calls it, with the same plain model.
    """
    norms = _batch_norms(model)
    needed, assumed = _estimate(model, world.world_size, evidence.optimizer)
    mine = _memory_bytes(world) if evidence.memory_bytes is None else evidence.memory_bytes
    smallest = min(world.all_gather_object(mine))
    kinds: list[Literal["ddp", "zero1", "fsdp"]] = ["ddp", "zero1"] if norms else ["ddp", "zero1", "fsdp"]
    strategy = next((kind for kind in kinds if needed[kind] <= _SHARE * smallest), kinds[-1])
    sizes = ", ".join(f"{kind} {_size(num_bytes)}" for kind, num_bytes in needed.items())
    reasons = [
        f"parameters, gradients and optimizer state{assumed} take about {sizes} a rank, activations not counted, and "
        f"{_SHARE:.0%} of the smallest device's {_size(smallest)} is for them"
        + ("" if needed[strategy] <= _SHARE * smallest else f": none that may be taken fits, {strategy} is smallest")
    ]
    batches = [size for size in world.all_gather_object(evidence.batch_per_rank) if size is not None]
    few = bool(norms and batches and min(batches) < _FEW_SAMPLES)
    if norms:
        reasons.append(f"{_some(norms)} tracks batch statistics, which fsdp would leave different on each rank")
    if few:
        reasons.append(f"batch statistics of {min(batches)} samples a rank are noisy: sync_batchnorm=True")
    unused = _unused(model, world, evidence) if strategy != "fsdp" else None
    if unused:
        reasons.append(f"the first pass left {_some(unused)} without a gradient: find_unused=True")
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
        _LOG.warning("strategy='auto' takes %s: %s", strategy, "; ".join(reasons))
    return decision


def _batch_norms(model: nn.Module) -> list[str]:
    from torch import nn

    kind = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  (the only common base)
    return [name for name, m in model.named_modules() if isinstance(m, kind) and m.track_running_stats]


def _unused(model: nn.Module, world: World, evidence: Evidence) -> list[str] | None:
    """Return the trainable parameters that the first pass of some rank left without a gradient; None: not known."""
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
    """Return the bytes per rank of each strategy, and what had to be assumed, in words."""
    every = sum(p.nbytes for p in model.parameters())
    trained = [p.nbytes for p in model.parameters() if p.requires_grad]
    grads, ratio = sum(trained), _state_ratio(optimizer)
    assumed = " (two moments each, as nothing tells its state)" if ratio is None else ""
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
    """Return bytes of state per byte of a parameter: measured on one step of a tiny one; None where that fails."""
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


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (f", ... ({len(names)} in all)" if len(names) > _MOST_NAMES else "")


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
    """Return the model on its rank's device, its replicas or shards joined. The same call serves any number of ranks.

    The order is right by construction: device first (a model that is moved after the wrap loses its gradient hooks
    without a word), then batch statistics, then the wrap, then the compiler. On one rank nothing is wrapped: the model
    itself comes back. Every rank of the world must call it: rank 0's weights are sent to all.

    From then on the global generators of `random`, NumPy and torch differ between ranks: otherwise all ranks would drop
    the same units and add the same noise. Those of rank 0 go on where they were, as on one rank, so that a model built
    later begins with the same weights at any number of ranks; each further rank is seeded by (the world's seed, rank).
    What must be equal on all ranks is drawn before, or from ``world.generator("what")``. A random state that is
    restored afterwards holds.

    Args:
        model: the module, not wrapped yet.
        world: this rank's world; `World.current()` if None.
        strategy: "ddp": everything on each rank (DistributedDataParallel). "zero1": that, and each rank holds a part of
            the optimizer's state. "fsdp": each rank holds a part of parameters, gradients and state (`fully_shard`),
            and ``model`` itself comes back, with other parameters. For both pass the optimizer through
            `prepare_optimizer`. "auto" takes the first of these that fits the device, and says why.
        static_graph: of DistributedDataParallel: the same parameters are used at every step.
        find_unused: a step may leave parameters without a gradient, others on each rank.
        bucket_mb: size of the buckets of gradients that travel together, of DistributedDataParallel.
        comm_hook: what travels: "fp16" or "bf16" halves it, "powersgd" sends factors of low rank, or a hook of your
            own, ``hook(None, bucket)``; alone, or as ``(state, hook)``. With "fsdp" the first two only.
        compile: pass the result through torch.compile (with "fsdp" its units), with these options if it is a mapping.
        units: parts of the model that "fsdp" gathers one at a time; None = the parts of its ModuleLists and Sequentials
            that are large enough.
        sync_batchnorm: batch statistics over the samples of all ranks, as one rank with the whole micro-batch has them:
            True wants layers that take some, "auto" replaces those that are there. Costs two collectives a layer.
        evidence: what "auto" may know beside the model; see `Evidence`.
        **options: further ones of DistributedDataParallel, or of `fully_shard` (``mp_policy=``, ...).

    Raises:
        ConfigError: the model is wrapped already, or an option is decided here, or unknown to the strategy.
        GuardError: names, shapes or dtypes of the model differ between ranks.
    """
    world = joined_world(world, "prepare")
    _refuse_unfit(model, world)
    if strategy not in ("ddp", "zero1", "fsdp", "auto"):
        raise ConfigError(f"strategy is 'ddp', 'zero1', 'fsdp' or 'auto', got {strategy!r}")
    if strategy == "auto":
        decision = decide(model, world, evidence or Evidence())
        strategy, find_unused = decision.strategy, find_unused or decision.find_unused or None
        sync_batchnorm = sync_batchnorm or ("auto" if decision.few_samples else False)
    own = {"static_graph": static_graph, "find_unused_parameters": find_unused, "bucket_cap_mb": bucket_mb}
    own = {name: value for name, value in own.items() if value is not None}
    if doubled := sorted(own.keys() & options.keys()):
        raise ConfigError(f"{', '.join(doubled)} of DistributedDataParallel was given under two names")
    options = {**options, **own}
    _check_options(strategy, options, comm_hook, units)
    compiler = None if compile is False else {} if compile is True else dict(compile)
    if sync_batchnorm is not False:
        from rankwise.train.batch_norm import join_batch_norms

        model = join_batch_norms(model, world, wish=sync_batchnorm)
    check_signature(model, world)  # names what differs: a wrap would leave ranks waiting for the others
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
        record = Prepared(strategy=strategy, group=group_of(world))
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
            "prepare wraps a module of torch, and this world, of a JAX program (World.init_jax), has no group of "
            "torch's: enter rankwise.bind() first and call world.init_jax() inside it, to have both"
        )
    refuse_strategies(model)
    if unwrapped(model) is not model or is_sharded(model):
        raise ConfigError(f"prepare wants a plain module, got a {type(model).__name__}: pass the module inside it")


def _check_options(strategy: str, options: Mapping[str, Any], comm_hook: Any, units: Any) -> None:
    import inspect

    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    decided = sorted({"device_ids", "output_device", "process_group", "module", "mesh"} & set(options))
    if decided:
        raise ConfigError(f"prepare decides {', '.join(decided)} from the world; leave them out")
    kind: Any = fully_shard if strategy == "fsdp" else DistributedDataParallel
    known = [name for name in inspect.signature(kind).parameters if name not in ("self", "module")]
    known += ["find_unused_parameters"] if strategy == "fsdp" else []
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"{kind.__name__} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    if units is not None and strategy != "fsdp":
        raise ConfigError(f"units= are gathered one at a time by strategy='fsdp', and this is {strategy!r}")
    if isinstance(comm_hook, str) and comm_hook not in ("fp16", "bf16", "powersgd"):
        raise ConfigError(f"comm_hook is 'fp16', 'bf16', 'powersgd' or a hook, got {comm_hook!r}")
    if strategy == "fsdp" and comm_hook not in (None, "fp16", "bf16"):
        raise ConfigError("fully_shard takes no hooks of DistributedDataParallel: comm_hook is 'fp16' or 'bf16' there")


def wrap_options(
    model: nn.Module, strategy: Strategy | None, options: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the options of `prepare` for a plain module, None for a model that is wrapped already.

    Raises:
        ConfigError: there are options for a model that is wrapped already.
    """
    plain = unwrapped(model) is model and not is_sharded(model)
    if (strategy or options) and not plain:
        raise ConfigError("strategy= and ddp= are for wrapping a plain module, but this model is wrapped already")
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
    """Return model, optimizer and scheduler as they train together, checked; made where functions that make them came.

    Args:
        model: plain, or wrapped already where `options` is None.
        optimizer: see `prepare_optimizer`.
        scheduler: or a function that makes it of the optimizer.
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
    check_scheduler(scheduler)
    return model, optimizer, scheduler
