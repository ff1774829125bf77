"""Which calls are collectives: of torch.distributed and of libraries, also inside functions and behind a place."""

from __future__ import annotations

import ast
import re

from rankwise.diagnose.lint.analysis.facts import FABRICS, GROUP, is_const
from rankwise.diagnose.lint.analysis.module import Module, once, position
from rankwise.diagnose.lint.analysis.names import called, last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, Scope
from rankwise.diagnose.lint.analysis.wrapped import known_sharded, sees, wraps

_COLLECTIVES = (
    "all_reduce all_gather all_gather_object all_gather_into_tensor all_gather_coalesced all_reduce_coalesced barrier "
    "broadcast broadcast_object_list gather gather_object monitored_barrier new_group reduce reduce_scatter "
    "reduce_scatter_tensor scatter scatter_object_list all_to_all all_to_all_single "
    "fsdp.FullyShardedDataParallel.state_dict_type fsdp.FullyShardedDataParallel.optim_state_dict "
    "fsdp.FullyShardedDataParallel.summon_full_params checkpoint.save checkpoint.load checkpoint.save_state_dict "
    "checkpoint.state_dict.get_state_dict checkpoint.state_dict.get_model_state_dict "
    "checkpoint.state_dict.get_optimizer_state_dict checkpoint.state_dict.set_model_state_dict"
).split()
_OF_OBJECTS = tuple(f"torch.distributed.{name}" for name in _COLLECTIVES if "_object" in name)
_HOROVOD = (
    "allreduce allreduce_ allgather broadcast broadcast_ broadcast_parameters broadcast_optimizer_state "
    "broadcast_object allgather_object barrier"
).split()
_USUAL = ("barrier", "all_reduce", "all_gather", "broadcast", "all_gather_object", "broadcast_object_list")
_FUNCTIONS = {
    "ignite.distributed": _USUAL,
    "mmengine.dist": (*_USUAL, "gather", "gather_object", "reduce", "all_reduce_dict", "sync_random_seed"),
    "detectron2.utils.comm": ("synchronize", "gather", "all_gather", "reduce_dict", "shared_random_seed"),
    "torch_xla.core.xla_model": ("rendezvous", "all_reduce", "all_gather", "mesh_reduce"),
    "deepspeed.comm": _USUAL,
}
_OBJECTS = {
    "accelerate.Accelerator": ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"),
    "deepspeed.initialize": ("save_checkpoint", "load_checkpoint"),
    **dict.fromkeys(
        FABRICS,
        ("barrier", "all_reduce", "all_gather", "broadcast", "save"),
    ),
}
_TRAINER = re.compile(r"(transformers|trl)\.(\w+\.)*\w*Trainer")
_GROUP_AT = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2, "reduce": 3}


@once
def collectives(module: Module) -> list[Call]:
    """Return the calls of torch.distributed that every rank of the default group must make."""
    found = _of_libraries(module)
    for name in _COLLECTIVES:
        for call in module.named(f"torch.distributed.{name}"):
            group = call.argument("group", _GROUP_AT.get(name))
            if (group is None or is_const(group, None)) and not _only_sets_the_type(call):
                found.append(call)
    return found


def _of_libraries(module: Module) -> list[Call]:
    """Return the calls that every rank must make of Horovod, DeepSpeed's engine, and Accelerate's accelerator."""
    listed = [call for name in _HOROVOD for call in module.named(f"horovod.torch.{name}")]
    for package, methods in _FUNCTIONS.items():
        if module.imports.uses(package.partition(".")[0]):
            listed += module.named(*(f"{package}.{method}" for method in methods))
    for maker, methods in _OBJECTS.items():
        # deepspeed.initialize returns the engine first
        made = {text_of(call.place.targets[0]) for call in module.named(maker) if call.place.targets}
        listed += [call for call in module.methods(*methods) if call.base in made]
        # of DDP the main rank alone may save its state; DeepSpeed and FSDP hold a part of it on each
        sharded = made and re.search("deepspeed|fsdp", module.source, re.IGNORECASE)
        if sharded and "distributed_type" not in module.attributes:
            listed += [call for call in module.methods("save_state", "load_state") if call.base in made]
    # FSDP gathers a state from all ranks; a context that says which kind of state counts for it
    for call in module.methods("state_dict") if known_sharded(module) else ():
        typed = any("state_dict_type" in text for text in call.place.contexts)
        if not typed and any(wrap.text == call.base and sees(module, wrap, call) for wrap in known_sharded(module)):
            listed.append(call)
    # a DTensor is gathered from all ranks
    listed += [call for call in module.methods("full_tensor") if not call.node.args]
    if module.imports.uses("lightning", "pytorch_lightning"):
        # a module's own all_gather, and what its trainer's strategy does
        for call in module.methods("all_gather", "barrier", "broadcast", "reduce"):
            owner = module.class_of("self", call.place.scope) if call.base.startswith("self") else None
            bases = owner.bases if owner is not None else []
            own = (
                call.base == "self" and call.method == "all_gather" and any("Module" in text_of(base) for base in bases)
            )
            if own or call.base.endswith("trainer.strategy"):
                listed.append(call)
        methods = ("save_checkpoint", "fit", "validate", "test", "predict")
        listed += [call for call in module.methods(*methods) if last(call.base) == "trainer"]
    # each rank evaluates and predicts a share; what is sharded is gathered to be saved
    trainers = module.named(*filter(_TRAINER.fullmatch, module.by_name))
    made = {text_of(part) for call in trainers for part in call.place.targets}
    saves = ["save_model"] if made and re.search("deepspeed|fsdp", module.source, re.IGNORECASE) else []
    listed += [call for call in module.methods("train", "evaluate", "predict", *saves) if call.base in made]
    return listed


def _only_sets_the_type(call: Call) -> bool:
    """Whether it is FSDP's ``with state_dict_type(...)`` around something that asks for no state."""
    stmt = call.place.stmt
    if call.method != "state_dict_type" or not isinstance(stmt, ast.With):
        return False
    inside = (called(part) for body in stmt.body for part in ast.walk(body))
    return not any(re.search("state_dict|save|load|checkpoint", name) for name in inside)


def collective_inside(module: Module, scope: Scope, depth: int = 3) -> Call | None:
    """Return a collective that a function always reaches on every rank that calls it, followed through calls."""
    memo: dict[Scope, Call | None] = module.answers.setdefault(collective_inside, {})
    if scope in memo:
        return memo[scope]
    memo[scope] = None  # a function that calls itself adds nothing
    listed = set(collectives(module))
    for call in scope.calls:
        if call.place.side:
            continue
        if call in listed:
            memo[scope] = call
            break
        if depth:
            target = module.scope_of(call)
            if target is not None and collective_inside(*target, depth - 1) is not None:
                memo[scope] = call
                break
    return memo[scope]


def collective_after(module: Module, place: Place) -> bool:
    """Whether all ranks that get past a place of a function reach a collective, or the wrap, further down in it."""
    listed = {*collectives(module), *(wrap.call for wrap in wraps(module))}
    return place.scope.is_function and any(
        call.place.scope is place.scope and call.place.side is None and position(call.node) > position(place.stmt)
        for call in listed
    )


def objects_over_nccl(module: Module) -> list[Call]:
    """Collectives of pickled objects: NCCL sends them through a buffer on the current device."""
    given = [call.argument("backend", 0) for call in module.named(GROUP)]
    if not all(isinstance(part, ast.Constant) and part.value == "nccl" for part in given):
        return []
    return [call for call in module.named(*_OF_OBJECTS) if not call.keyword("group")]
