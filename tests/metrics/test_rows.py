"""gather_rows: every sample's row once, in the order of the samples."""

import numpy as np
import pytest
import torch

from rankwise.errors import ConfigError, DesyncError
from rankwise.metrics import gather_rows
from rankwise.testing import run_ranks
from rankwise.world import World

# rank 1 holds nothing; sample 4 stands twice; the rows of weight 0 are padding
IDS = [[5, 0, 4, 9], [], [4, 2, 9]]
WEIGHTS = [[1, 1, 1, 0], [], [1, 1, 0.5]]


def gather(world):
    ids, weights = IDS[world.rank], WEIGHTS[world.rank]
    ids = torch.tensor(ids, dtype=torch.int64)
    rows = {
        "tensor": ids[:, None] * 10.0,
        "array": np.asarray(ids) * 2,
        "text": [f"sample {index} of rank {world.rank}" for index in ids.tolist()],
    }
    return gather_rows(rows, ids, world, weights=weights)


def test_rows_arrive_sorted_without_duplicates_and_padding():
    """The main rank has samples 0, 2, 4, 5, 9 once each; the others have nothing."""
    (rows, ids), *others = run_ranks(gather, 3)
    assert others == [None, None]
    assert ids.tolist() == [0, 2, 4, 5, 9]
    assert rows["tensor"].tolist() == [[0.0], [20.0], [40.0], [50.0], [90.0]]
    assert rows["array"].tolist() == [0, 4, 8, 10, 18]
    assert rows["text"][2] == "sample 4 of rank 0"
    assert rows["text"][4] == "sample 9 of rank 2"


def test_without_ids_all_rows_come_by_rank():
    """Nothing is sorted or dropped when the samples have no names."""
    rows, ids = gather_rows(torch.tensor([3.0, 1.0, 1.0]), world=World.single())
    assert rows.tolist() == [3.0, 1.0, 1.0]
    assert ids.tolist() == [0, 1, 2]


def uneven(world):
    rows, _ = gather_rows(torch.tensor([[2**24 + 1]] if world.rank else []), world=world) or (None, None)
    with pytest.raises((ConfigError, DesyncError)) as caught:
        gather_rows(np.arange(3), np.arange(3 - world.rank), world)
    return str(caught.value), rows


def test_a_rank_with_wrong_lengths_fails_all():
    """The lengths are named, and nobody waits. A rank without rows does not decide what the others' are."""
    (first, rows), (second, _) = run_ranks(uneven, 2)
    assert rows.tolist() == [[2**24 + 1]]
    assert rows.dtype == torch.int64
    assert "rows: 3, ids: 2" in second
    assert "rank 1" in first


def other_fields(world):
    with pytest.raises(DesyncError) as caught:
        gather_rows({f"field {world.rank}": np.arange(3)}, world=world)
    return str(caught.value)


def test_ranks_with_different_fields_are_refused_on_all():
    """What only the main rank can see is everybody's error."""
    first, second = run_ranks(other_fields, 2)
    assert "ranks [1] differ from rank 0" in first
    assert "rank 0 failed" in second


def test_rows_of_another_kind_are_refused():
    """A single number is not rows."""
    with pytest.raises(ConfigError, match="rows is a float"):
        gather_rows(3.0, world=World.single())
