"""The network of `model.py` in plain JAX: a latent layer of two numbers, a classifier on it, and how it is trained."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HIDDEN_SHARE = 0.5
LAYERS = {"encoder": ("genes", "width", 2), "decoder": (2, "width", "genes"), "classifier": (2, "width", "types")}


class Training(NamedTuple):
    """All that training changes: weights by name, Adam's two means of the gradients, and the steps done."""

    weights: dict[str, Any]
    mean: dict[str, Any]
    square: dict[str, Any]
    num_steps: Any


def start(draws: np.random.Generator, num_genes: int, num_types: int, dtype: str, width: int = 64) -> Training:
    """Return a beginning: uniform weights, as torch draws them; the same on all ranks, for `draws` are."""
    sizes = {"genes": num_genes, "types": num_types, "width": width}
    weights = {}
    for part, layers in LAYERS.items():
        for number in range(2):
            into, out = (sizes.get(size, size) for size in layers[number : number + 2])
            for name, shape in (("weight", (into, out)), ("bias", (out,))):
                weights[f"{part}/{number}/{name}"] = draws.uniform(-1, 1, shape).astype(dtype) / np.sqrt(
                    into, dtype=dtype
                )
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    return Training(weights, zeros, zeros, np.int32(0))


def apply(weights: dict[str, Any], part: str, x: Any) -> Any:
    """Return two linear layers with GELU between them."""
    hidden = jax.nn.gelu(x @ weights[f"{part}/0/weight"] + weights[f"{part}/0/bias"], approximate=False)
    return hidden @ weights[f"{part}/1/weight"] + weights[f"{part}/1/bias"]


@jax.jit
def hide_genes(fields: dict[str, Any], keys: Any) -> dict[str, Any]:
    """Add ``seen``: the cells with every other gene or so hidden. What is hidden follows from each cell's key.

    A ``batch_transform=``: `keys` are the data of JAX's keys, uint32[cells, 2], the same at any world size.
    """
    cells = fields["X"]
    left = jax.vmap(lambda key: jax.random.bernoulli(jax.random.wrap_key_data(key), 1 - HIDDEN_SHARE, cells.shape[1:]))
    return {**fields, "seen": cells * left(keys) / (1 - HIDDEN_SHARE)}


def judge(weights: dict[str, Any], cells: Any, seen: Any, types: Any) -> tuple[Any, Any, Any]:
    """Return points [B, 2], the loss of each cell and whether it is recognised, [B]."""
    dtype = weights["encoder/0/weight"].dtype
    points = apply(weights, "encoder", seen.astype(dtype))
    errors = jnp.square(apply(weights, "decoder", points) - cells.astype(dtype)).mean(axis=1)
    logits = jax.nn.log_softmax(apply(weights, "classifier", points))
    return points, errors - jnp.take_along_axis(logits, types[:, None], axis=1)[:, 0], logits.argmax(axis=1) == types


@jax.jit
def train_step(training: Training, batch: dict[str, Any], real: Any, rate: float) -> tuple[Training, Any]:
    """Return what one step of AdamW makes of `training`, and the mean loss over the global batch.

    Args:
        training: the same on all ranks.
        batch: global arrays, rows of all ranks.
        real: 1 for each cell, 0 for the rows that fill up the shape: they count in no sum.
        rate: how far to go.
    """

    def mean_loss(weights: dict[str, Any]) -> Any:
        losses = judge(weights, batch["X"], batch["seen"], batch["cell_type"])[1]
        return (losses * real).sum() / real.sum()

    loss, gradients = jax.value_and_grad(mean_loss)(training.weights)
    return adamw(training, gradients, rate), loss


def adamw(training: Training, gradients: dict[str, Any], rate: float, decay: float = 0.1) -> Training:
    """Return the training after a step of AdamW (Loshchilov and Hutter, 2019), with the usual constants."""
    first, second = 0.9, 0.999
    done = training.num_steps + 1
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, training.mean, gradients)
    square = jax.tree.map(lambda s, g: second * s + (1 - second) * g * g, training.square, gradients)

    def moved(weight: Any, m: Any, s: Any) -> Any:
        step = (m / (1 - first**done)) / (jnp.sqrt(s / (1 - second**done)) + 1e-8)
        return (weight - rate * (step + decay * weight)).astype(weight.dtype)

    return Training(jax.tree.map(moved, training.weights, mean, square), mean, square, done)
