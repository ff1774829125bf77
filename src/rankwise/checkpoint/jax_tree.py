"""`JaxTree`: a JAX pytree as a part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.errors import ConfigError


class JaxTree:
    """A JAX pytree, for example parameters and the optimizer's state, equal on all ranks; does not need torch.

    Restoring fills the same structure, and puts each array on the device of the existing one, with its dtype and
    sharding. Arrays of which each process has only a part are refused when saving.

    Args:
        tree: any tree of arrays, keys, numbers and other JAX leaves.

    Attributes:
        tree: set it to the newest one before saving; restoring sets it to that of the checkpoint.
    """

    scope: Literal["replicated"] = "replicated"

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves, and their places in the tree."""
        import jax

        found = jax.tree_util.tree_flatten_with_path(self.tree)[0]
        places = [jax.tree_util.keystr(path) for path, _ in found]
        leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for _, leaf in found]
        return {"places": places, "leaves": leaves}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Fill the tree.

        Raises:
            ConfigError: the state has another tree structure, or an array has another shape.
        """
        import jax

        found, structure = jax.tree_util.tree_flatten_with_path(self.tree)
        places = [jax.tree_util.keystr(path) for path, _ in found]
        if places != list(state["places"]):
            odd = sorted({*places} ^ {*state["places"]}) or places
            raise ConfigError(
                f"the checkpoint holds a tree of {len(state['places'])} leaves, this tree has {len(places)}; they "
                f"differ at {', '.join(odd[:3])}: build the tree as it was when it was saved"
            )
        leaves = [_like(old, new, place) for (_, old), new, place in zip(found, state["leaves"], places, strict=True)]
        self.tree = jax.tree_util.tree_unflatten(structure, leaves)


def _like(old: Any, new: Any, place: str) -> Any:
    """Return a saved leaf in the form of an existing one."""
    import jax

    if not isinstance(old, jax.Array):
        return new
    if _is_key(old):
        return jax.random.wrap_key_data(_put(np.asarray(new), jax.random.key_data(old), place), impl=_impl(old))
    return _put(np.asarray(new), old, place)


def _put(values: NDArray, like: Any, place: str) -> Any:
    import jax

    if values.shape != like.shape or values.dtype != like.dtype:
        raise ConfigError(
            f"the leaf {place} is {like.dtype}{list(like.shape)}, in the checkpoint it is {values.dtype}"
            f"{list(values.shape)}: build the tree as it was when it was saved"
        )
    if like.is_fully_addressable:
        return jax.device_put(values, like.sharding)
    return jax.make_array_from_callback(values.shape, like.sharding, lambda index: values[index])


def _is_key(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array) and bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _impl(key: Any) -> Any:
    import jax

    return jax.random.key_impl(key)
