"""Read a collection with annbatch: ``python read_by_annbatch.py COLLECTION``; its rows are those of `small_anndata`.

Runs in an environment that has annbatch and not rankwise. Prints how many rows came, and how many of them were right.
"""

import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")

from annbatch import DatasetCollection, Loader  # noqa: E402


def main(place, source):
    """Compare each row of X with the one that its name and its index tell."""
    rows = np.load(source)  # by the number n of obs
    collection = DatasetCollection(place, mode="r")
    obs, seen, right = collection.obs(), 0, 0
    loader = Loader(
        chunk_size=7, preload_nchunks=4, batch_size=14, shuffle=True, preload_to_gpu=False, return_index=True
    )
    for batch in loader.use_collection(collection):
        numbers = batch["obs"]["n"].to_numpy()
        same_row = (batch["X"].toarray() == rows[numbers]).all(axis=1)
        right += int((same_row & (obs["n"].to_numpy()[batch["index"]] == numbers)).sum())
        seen += len(numbers)
    print(seen, right)


if __name__ == "__main__":
    main(*sys.argv[1:])
