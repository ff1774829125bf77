"""RW221: attributes of a model that are asked of DDP, which has only its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place
from rankwise.diagnose.lint.analysis.wrapped import DDP, Wrap, is_rebound, known_prepared, known_wraps, sees
from rankwise.diagnose.lint.record import HEAD, Hit, Rule

# the public attributes of nn.Module and of DistributedDataParallel
OWN = frozenset(
    "add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr float "
    "forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers "
    "named_children named_modules named_parameters parameters register_backward_hook register_buffer register_forward_hook "
    "register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train "
    "training type xpu zero_grad "
    "bucket_bytes_cap broadcast_bucket_size broadcast_buffers buffer_hook device device_ids device_mesh device_type dim "
    "find_unused_parameters gather gradient_as_bucket_view is_multi_device_module join join_hook logger "
    "mixed_precision module no_sync output_device parameters_to_ignore process_group reducer register_comm_hook "
    "require_backward_grad_sync require_forward_param_sync scatter static_graph to_kwargs will_sync_module_buffers "
    "T_destination batched_grad_copy bucket_bytes_cap_default bucket_bytes_cap_list forward_sync_buffers join_device "
    "join_process_group modules_buffers modules_params named_module_buffers skip_all_reduce_unused_params "
    "use_side_stream_for_tensor_copies".split()
)
# what it was told to be, or to answer for, in this file
_OTHERS = re.compile(r"deepspeed|fsdp|FullySharded|megatron", re.IGNORECASE)
_DELEGATES = re.compile(r"__getattr__|\bsetattr\(")


@Rule(
    "RW221", "attribute-of-wrapped", "error", "medium",
    message="{name} is DDP around the model and has no {attribute!r}: AttributeError; ask {asked}",
    why="DDP hands on the forward pass and nothing else. Methods and attributes of the model itself (save_pretrained, generate, "
    "config) are those of model.module.",
    wrong=HEAD + """
def save(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        model.save_pretrained(path)
""",
    right=HEAD + """
def save(net, path):
    model = DDP(net)
    if dist.get_rank() == 0:
        model.module.save_pretrained(path)
""",
    ignore="the attribute is set on the wrapped model elsewhere.",
)  # fmt: skip
def attribute_of_wrapped(module: Module) -> Iterator[Hit]:
    """model.save_pretrained() and the like of a name that means the wrapped model in every run."""
    known = [wrap for wrap in known_wraps(module) if wrap.made.name == DDP]
    # the wrappers of DeepSpeed and FSDP hand attributes on
    others = known_prepared(module)
    known += others if others and not _OTHERS.search(module.source) else []
    known = [wrap for wrap in known if _is_certain(module, wrap)]
    if not known or _DELEGATES.search(module.source) or "mmcv" in module.source:
        return
    texts = {wrap.text for wrap in known}
    set_here = {found.text for found in module.bindings if not isinstance(found.place.stmt, ast.AugAssign)}
    seen: set[tuple[int, str]] = set()
    for node, place in _attributes(module, texts):
        base = text_of(node.value)
        line = node.lineno, node.attr
        if node.attr in OWN or node.attr.startswith("_") or f"{base}.{node.attr}" in set_here or line in seen:
            continue
        at = Call(ast.copy_location(ast.Call(node, [], []), node), "", place)
        if place.tries or _is_asked(place, base):
            continue
        for wrap in known:
            if line not in seen and wrap.text == base and sees(module, wrap, at) and _is_behind(module, wrap, at):
                seen.add(line)
                prepared = wrap.made.method == "prepare"
                asked = f"{wrap.made.base}.unwrap_model({base})" if prepared else f"{base}.module"
                yield Hit(node, {"name": base, "attribute": node.attr, "asked": asked})


def _attributes(module: Module, texts: set[str]) -> Iterator[tuple[ast.Attribute, Place]]:
    """Yield where something is asked of one of some names: in calls, their arguments, and what is bound."""
    heads = tuple(f"{text}." for text in texts)
    for call in module.calls:
        parts = [*call.given, call.node.func] if call.text.startswith(heads) else call.given
        for part in parts:
            yield from ((node, call.place) for node in _chain(part) if text_of(node.value) in texts)
    for binding in module.bindings:
        stmt = binding.place.stmt
        target = [stmt.target] if isinstance(stmt, ast.AugAssign) else []
        for asked in (binding.value, *target, stmt.iter if isinstance(stmt, ast.For) else None):
            yield from ((node, binding.place) for node in _chain(asked) if text_of(node.value) in texts)
    for place in (place for scope in module.scopes for place in scope.exits):
        value = getattr(place.stmt, "value", None)
        yield from ((node, place) for node in _chain(value) if text_of(node.value) in texts)


def _chain(node: ast.expr | None) -> Iterator[ast.Attribute]:
    """Yield a dotted name from its end: ``model.config.size``, ``model.config``."""
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value


def _is_certain(module: Module, wrap: Wrap) -> bool:
    """Whether a name means the wrapped model in every run: no test around the wrap, and no other meaning in the file."""
    if wrap.made.place.branches or wrap.place.branches or wrap.made.place.tries:
        return False
    stmt = wrap.made.place.stmt
    if not isinstance(stmt, ast.Assign | ast.AnnAssign | ast.Return) or stmt.value is not wrap.made.node:
        return False
    if not wrap.text.startswith("self."):
        return True
    # of a field, only what __init__ makes it last is sure everywhere else
    other = [found for found in module.bindings if found.text == wrap.text and found.place.stmt is not wrap.place.stmt]
    mine = wrap.place.scope
    return mine.name == "__init__" and all(
        (found.place.scope is mine and position(found.place.stmt) < position(wrap.place.stmt))
        or not module.is_related(*(module.class_of("self", scope) for scope in (mine, found.place.scope)))
        for found in other
    )


def _is_behind(module: Module, wrap: Wrap, at: Call) -> bool:
    """Whether a place is reached after the wrap: in the function that wraps further down, or not from above it."""
    if at.place.scope is wrap.place.scope:
        return position(at.node) > position(wrap.call.node) and not is_rebound(wrap, at)
    scope = at.place.scope
    if not wrap.text.startswith("self."):
        local = scope.bindings.get(wrap.text, ())
        return not local
    early = [call for call in module.callers(scope) if call.place.scope is wrap.place.scope]
    return all(position(call.node) > position(wrap.call.node) for call in early)


def _is_asked(place: Place, base: str) -> bool:
    """Whether a test around a place asks what the model is: ``hasattr(model, "module")``, ``if args.distributed``."""
    texts = [ast.unparse(branch.test) for branch in place.branches if branch.side is None]
    asks = re.compile(
        rf"(hasattr|isinstance|type)\({re.escape(base)}\b|ddp|distributed|parallel|multi|world", re.IGNORECASE
    )
    return any(asks.search(text) for text in texts)
