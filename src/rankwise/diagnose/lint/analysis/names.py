"""What a name stands for: imports, aliases, and the one spelling under which rules know a thing."""

from __future__ import annotations

import ast

# Where a thing has several addresses, rules know it by one.
_CANONICAL = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.utils.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.IterableDataset": "torch.utils.data.IterableDataset",
    "torch.utils.data.dataset.random_split": "torch.utils.data.random_split",
    "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.nn.modules.batchnorm.SyncBatchNorm": "torch.nn.SyncBatchNorm",
    "torch.distributed._composable.fsdp.fully_shard": "torch.distributed.fsdp.fully_shard",
    "mmcv.parallel.MMDistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torchdata.stateful_dataloader.StatefulDataLoader": "torch.utils.data.DataLoader",
    # made of torch's own, with other ways of collating
    **dict.fromkeys(
        ("monai.data.DataLoader", "monai.data.ThreadDataLoader", "torch_geometric.loader.DataLoader"),
        "torch.utils.data.DataLoader",
    ),
    "monai.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torchft.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
}


def text_of(node: ast.expr) -> str:
    """Return a name, attribute or call chain as text: ``model.to``, ``scaler.scale().backward``, ``opts[].step``."""
    parts: list[str] = []
    while True:
        kind = type(node)
        if kind is ast.Attribute:
            parts.append("." + node.attr)  # type: ignore[attr-defined]
            node = node.value  # type: ignore[attr-defined]
        elif kind is ast.Name:
            parts.append(node.id)  # type: ignore[attr-defined]
            break
        elif kind is ast.Call:
            parts.append("()")
            node = node.func  # type: ignore[attr-defined]
        elif kind is ast.Subscript:
            parts.append("[]")
            node = node.value  # type: ignore[attr-defined]
        else:
            parts.append("?")
            break
    parts.reverse()
    return "".join(parts)


def last(text: str) -> str:
    """Return the last part of a dotted text."""
    return text[text.rfind(".") + 1 :]


def called(node: ast.AST | None) -> str:
    """Return the last part of what an expression calls, "" for what is no call."""
    return last(text_of(node.func)) if isinstance(node, ast.Call) else ""


def receiver(node: ast.AST | None) -> ast.expr | None:
    """Return what a method is called of: `model` of ``model.to(device)``; None for anything else."""
    func = node.func if isinstance(node, ast.Call) else None
    return func.value if isinstance(func, ast.Attribute) else None


def nodes_in(node: ast.AST | None) -> list[ast.AST]:
    """Return what `ast.walk` yields, less the contexts of names, in half the time."""
    found = [] if node is None else [node]
    for each in found:  # grows while it is read
        for name in each._fields:
            part = getattr(each, name, None)
            if type(part) is list:
                found += [inner for inner in part if isinstance(inner, ast.AST)]
            elif isinstance(part, ast.AST) and name != "ctx":
                found.append(part)
    return found


def names_in(node: ast.AST | None) -> set[str]:
    """Return every name, and every attribute's last part, that occurs in an expression."""
    parts = nodes_in(node)
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in parts
        if isinstance(part, ast.Name | ast.Attribute)
    }


def texts_in(node: ast.AST | None) -> set[str]:
    """Return the variables and fields in an expression as text, each with those that it hangs on."""
    return {text_of(part) for part in nodes_in(node) if isinstance(part, ast.Name | ast.Attribute)}


class Imports:
    """The names that a file's imports (and module-level aliases) bind, wherever they stand.

    A name that two imports bind differently (a fallback in ``except ImportError``) stands for nothing known.
    """

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.modules: set[str] = set()
        self.nodes: list[tuple[str, ast.alias, ast.stmt]] = []

    def add_import(self, node: ast.Import) -> None:
        """Read ``import a.b as c``."""
        for alias in node.names:
            self.modules.add(alias.name)
            self.nodes.append((alias.name, alias, node))
            if alias.asname:
                self.bind(alias.asname, alias.name)
            else:
                root = alias.name.partition(".")[0]
                self.bind(root, root)

    def add_from(self, node: ast.ImportFrom) -> None:
        """Read ``from a import b as c``; relative modules keep their dots."""
        module = "." * node.level + (node.module or "")
        self.modules.add(module)
        joint = "" if not node.module else "."
        for alias in node.names:
            target = f"{module}{joint}{alias.name}"
            self.nodes.append((target, alias, node))
            self.bind(alias.asname or alias.name, target)

    def bind(self, name: str, target: str) -> None:
        """Bind a name; a second, different target makes it unknown."""
        target = canonical(target)
        self.bound[name] = target if self.bound.get(name, target) == target else f"?{name}"

    def resolve(self, text: str) -> str | None:
        """Return the full name of a dotted text whose root an import binds, else None."""
        root, dot, rest = text.partition(".")
        bound = self.bound.get(root)
        if bound is None:
            return None
        return canonical(f"{bound}.{rest}") if dot else bound

    def uses(self, *packages: str) -> bool:
        """Whether one of some packages, or a module inside one, is imported."""
        inside = tuple(f"{package}." for package in packages)
        return any(name in packages or name.startswith(inside) for name in (*self.modules, *self.bound.values()))


def canonical(name: str) -> str:
    """Return the spelling that rules use."""
    name = name.replace("torch.distributed.distributed_c10d.", "torch.distributed.")
    return _CANONICAL.get(name, name)
