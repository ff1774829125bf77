"""What is trained on in the loops of this folder: crops of a volume, and rows of stores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.data.rows import OrderedLoader, RowSource


@dataclass(frozen=True)
class Kind:
    """One kind of samples.

    Attributes:
        open: from where they lie to a loader; its rank and world are those of the process group that is there.
        inputs: from a batch to float64[B, num_inputs], at most about 1.
        values: from a batch to one number for each sample, which says who it is.
    """

    open: Callable[[str], Any]
    inputs: Callable[[Any], Any]
    values: Callable[[Any], list[int]]
    num_inputs: int
    batch_size: int


def open_crops(place):
    """Tiles of a volume."""
    index = CropIndex(place, shape=(4, 8, 8))
    return IndexPipeline(index, order=Order(index, batch_size=7), micro_batch=3)


def open_rows(places):
    """Dense rows of two stores."""
    source = RowSource(places.split(","), obs=("n",), dense=True, dtype="f8", threads=1)
    return OrderedLoader(source, order=Order(source, batch_size=14), micro_batch=5)


KINDS = {
    "crops": Kind(
        open=open_crops,
        inputs=lambda batch: batch["image"].flatten(1).double() / 24_000,
        values=lambda batch: batch["image"][:, 0, 0, 0].tolist(),
        num_inputs=4 * 8 * 8,
        batch_size=7,
    ),
    "rows": Kind(
        open=open_rows,
        inputs=lambda batch: batch["X"] / 250,
        values=lambda batch: batch["n"].tolist(),
        num_inputs=11,
        batch_size=14,
    ),
}
