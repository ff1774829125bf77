"""Trees of JAX as parts of checkpoints."""

from typing import NamedTuple

import numpy as np
import pytest

from rankwise.checkpoint import Checkpointer, JaxTree
from rankwise.errors import CheckpointError
from rankwise.world import World

jax = pytest.importorskip("jax")
jnp = jax.numpy


class Momentum(NamedTuple):
    """State as optimizers of JAX have it."""

    count: object
    mean: object


def made(seed, *, shape=(3, 2)):
    """A tree of many kinds of leaves."""
    weights = jax.random.normal(jax.random.key(seed), shape)
    return {
        "params": [weights, weights.astype("bfloat16")],
        "momentum": Momentum(count=jnp.int32(seed), mean=weights * 2),
        "key": jax.random.key(seed),
        "old key": jax.random.PRNGKey(seed),
        "host": np.full(2, seed, "u2"),
        "rate": 0.5 + seed,
        "none": None,
    }


def leaves(tree):
    """Values of a tree with their kinds."""
    found = jax.tree.leaves(tree)
    keys = [jnp.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key) for leaf in found]
    values = [jax.random.key_data(leaf) if is_key else leaf for leaf, is_key in zip(found, keys, strict=True)]
    return [(type(leaf).__name__, str(np.asarray(leaf).dtype), np.asarray(leaf).tolist()) for leaf in values], keys


def test_a_tree_comes_back_as_it_was(tmp_path):
    """Structure, kinds, dtypes and values, keys of both sorts: what is drawn next is the same."""
    checkpointer, state = Checkpointer(tmp_path, world=World.single()), JaxTree(made(1))
    checkpointer.save(1, {"state": state})
    state.tree = made(2)
    assert leaves(state.tree) != leaves(made(1))
    checkpointer.restore({"state": state})
    assert leaves(state.tree) == leaves(made(1))
    assert jax.tree.structure(state.tree) == jax.tree.structure(made(1))
    assert jax.random.uniform(state.tree["key"]) == jax.random.uniform(jax.random.key(1))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: {"a": jnp.zeros(2)}, r"a tree of 8 leaves, this tree has 1; they differ at .*\['a'\]"),
        (
            lambda: made(2, shape=(3, 4)),
            r"leaf \['momentum'\]\.mean is float32\[3, 4\], in the checkpoint it is float32\[3, 2\]",
        ),
    ],
)
def test_other_trees_are_refused(tmp_path, other, said):
    """With the leaf, and what was and is there."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"state": JaxTree(made(1))})
    with pytest.raises(CheckpointError, match=said):
        checkpointer.restore({"state": JaxTree(other())})


def test_arrays_in_plain_trees_become_numpys(tmp_path):
    """Keys and tuples with names want a `JaxTree`, which is said."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"state": {"weights": jnp.arange(3)}})
    back = {}
    checkpointer.restore({"state": back})
    assert isinstance(back["weights"], np.ndarray)
    assert back["weights"].tolist() == [0, 1, 2]
    for leaf, said in ((jax.random.key(1), "is a JAX key"), (Momentum(1, 2), "Momentum; .*JaxTree")):
        with pytest.raises(
            CheckpointError, match=rf"state\['tree'\]\['a'\] {'' if 'key' in said else 'is a '}.*{said}"
        ):
            checkpointer.save(2, {"state": {"a": leaf}})
