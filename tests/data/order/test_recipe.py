import pytest

from rankwise.data.order.lanes import Grid
from rankwise.data.order.layout import Recipe
from rankwise.errors import ConfigError

GRID = {"num_samples": 1000, "chunk_samples": 10, "lanes": 8, "window": 4}


def recipe(*, kind="shuffle", fingerprint=None, **grid):
    return Recipe.of(Grid(**{**GRID, **grid}), kind=kind, fingerprint=fingerprint)


def test_it_reads_back():
    """The string says what decides the order, and its parts come back from it."""
    text = str(recipe())
    assert text.startswith("v1.shuffle.L8.W4.")
    assert Recipe.parse(text) == recipe()


def test_all_that_decides_the_order_is_in_the_hash():
    """Promise 1: data, number, grid, kind, lanes and window each change the recipe."""
    changed = [
        recipe(),
        recipe(kind="sequential"),
        recipe(fingerprint="a"),
        recipe(fingerprint="b"),
        *(recipe(**{name: value + 1}) for name, value in GRID.items()),
    ]
    assert len({each.digest for each in changed}) == len(changed)


def test_the_hash_is_frozen():
    """A state saved by version 1 must be accepted by every later release of version 1."""
    assert str(recipe(fingerprint="abc")) == "v1.shuffle.L8.W4.61228273bb389eb2"


def test_differences_are_named():
    """What can be read from the strings is told apart; otherwise the data differ."""
    assert recipe().differences(recipe()) == []
    assert recipe().differences(recipe(lanes=16)) == ["lanes (saved 16, here 8)"]
    assert "window (saved 5, here 4)" in recipe().differences(recipe(window=5, kind="sequential"))
    assert recipe().differences(recipe(num_samples=999))[0].startswith("the data")


@pytest.mark.parametrize("text", ["", "v1", "v1.shuffle.L8.W4.zz", "v1.shuffle.L8.W4.0123456789abcdef ", "{}"])
def test_other_strings_are_refused(text):
    """A damaged recipe is an error, not a mismatch by accident."""
    with pytest.raises(ConfigError, match="a recipe must look like"):
        Recipe.parse(text)
