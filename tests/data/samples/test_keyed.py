"""Keys and seeds of samples inside a dataset."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from rankwise.data.samples import sample_key
from rankwise.data.samples.keyed import KeyedDataset
from rankwise.errors import ConfigError


class Draws:
    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == 4:
            raise ValueError("bad sample")
        return index, sample_key(), random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("key", [0, 5, -1, 2**63 - 1, -(2**63)])
def test_a_key_decides_every_generator(key):
    """Any int64 is a key; equal keys draw equally whatever else was fetched before, others differ."""
    dataset = KeyedDataset(Draws(), reseed=True)
    alone = dataset[2, key]
    together = dataset.__getitems__([(0, 17), (2, key), (3, key + 1 if key < 0 else key - 1)])
    assert alone == together[1]
    assert alone[:2] == (2, key)
    assert all(alone[k] != together[2][k] for k in (2, 3, 4))


def test_generators_are_given_back_also_after_an_error():
    """An exception in the dataset leaves neither generators nor the key behind."""
    before = random.getstate()
    with pytest.raises(ValueError, match="bad sample"):
        KeyedDataset(Draws(), reseed=True)[4, 1]
    assert random.getstate() == before
    with pytest.raises(ConfigError, match="only works inside a dataset"):
        sample_key()


def test_without_reseeding_the_key_is_still_told():
    """reseed=False fetches with the generators as they are; the key is there."""
    dataset = KeyedDataset(Draws(), reseed=False)
    random.seed(1)
    first, second = dataset[1, 9], dataset[1, 9]
    assert first[:2] == second[:2] == (1, 9)
    assert first[2] != second[2]


class Batched(Draws):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("dataset", [Draws(), Subset(Draws(), [2, 0]), StackDataset(a=Draws(), b=Draws())])
def test_wrappers_of_torch_are_seeded_as_what_they_wrap(dataset):
    """Subset (so random_split) and StackDataset have ``__getitems__`` even where their datasets have not."""
    keyed = KeyedDataset(dataset, reseed=None)
    assert keyed.reseed
    assert keyed.__getitems__([(1, 9), (0, 4)])[0] == keyed[1, 9]
    nested = Subset(ConcatDataset([dataset, dataset]), [1])
    assert KeyedDataset(nested, reseed=None).reseed
    assert not KeyedDataset(Subset(Batched(), [2]), reseed=None).reseed
