"""Splits by a hash of identities."""

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops import CropIndex
from rankwise.data.crops.index.inputs import split_images
from rankwise.data.order import SplitRule, place_of_group
from rankwise.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:the split by")


@dataclass
class Who:
    """As much of an image as a split looks at."""

    name: str
    plate: str = ""
    well: str = ""


def people(count, *, first=0):
    return [Who(f"p{n // 8}/{n}", f"p{n // 8}", f"B/{n // 4 % 2}") for n in range(first, first + count)]


def where(images, by, seed=1, fractions=(0.5, 0.3, 0.2), exact=False):
    names = [str(number) for number in range(len(fractions))]
    rule = SplitRule.of(dict(zip(names, fractions, strict=True)), None, exact=exact, seed=seed)
    parts = split_images(images, by=by, rule=rule)
    return {images[number].name: part for part, numbers in enumerate(parts) for number in numbers}


@given(st.integers(1, 200), st.sampled_from(["plate", "well", "array"]), st.integers(0, 9))
def test_new_images_move_no_old_one(more, by, seed):
    """Images that are appended, or put in front, leave every other one in its part."""
    old = people(400)
    before = where(old, by, seed)
    for images in (old + people(more, first=400), people(more, first=400) + old):
        after = where(images, by, seed)
        assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("by", ["plate", "well"])
def test_a_group_stays_together(by):
    """All images of a plate, or well, are in one part, and every image is in one."""
    images = people(800)
    found = where(images, by)
    assert len(found) == len(images)
    groups = {}
    for image in images:
        key = image.plate if by == "plate" else (image.plate, image.well)
        groups.setdefault(key, set()).add(found[image.name])
    assert {len(parts) for parts in groups.values()} == {1}


def test_parts_are_as_large_as_asked_for():
    """Of many groups each part holds its fraction, within chance; fractions below 1 leave some out."""
    images = [Who(str(number)) for number in range(20_000)]
    found = list(where(images, "array").values())
    for part, fraction in enumerate((0.5, 0.3, 0.2)):
        assert abs(found.count(part) / len(images) - fraction) < 0.015
    assert abs(len(where(images, "array", fractions=(0.1, 0.2))) / len(images) - 0.3) < 0.015


def test_what_came_out_is_said(caplog):
    """The log names the parts with the number of groups; an empty part is refused with the way out."""
    with caplog.at_level(logging.INFO, "rankwise.crops"):
        where(people(800), "plate")
    assert "split by plate: 0: " in caplog.text
    few = r"leaves .* empty .*0 of 1 arrays.*; these are too few for a split by hash: use exact=True, another seed"
    with pytest.raises(ConfigError, match=few):
        where([Who("one")], "array")
    with pytest.raises(ConfigError, match=r"leaves .* empty .*0 of 1 arrays.*; use another seed"):
        where([Who("one")], "array", exact=True)


@pytest.mark.parametrize("fractions", [(), (0.5, 0.6), (0.5, 0.0), (-0.1, 0.5)])
def test_fractions_are_shares(fractions):
    """They are above 0 and at most 1 together."""
    with pytest.raises(ConfigError, match="fractions must be above 0 and at most 1 together"):
        where(people(40), "array", fractions=fractions)


def test_images_must_be_told_apart():
    """Equal names, and images without a plate, are refused with what to do instead."""
    with pytest.raises(ConfigError, match=r"several images are named 'a'.*pass root="):
        where([Who("a"), Who("a"), Who("b")], "array")
    with pytest.raises(ConfigError, match="image 'a' has no plate: use by=\"array\""):
        where([Who("a"), Who("b")], "plate")
    with pytest.raises(ConfigError, match='a split needs by="plate"'):
        where([Who("a"), Who("b")], "donor")


def test_an_index_splits_into_indexes(volumes):
    """Parts are indexes over disjoint images, by name or in order, and split the same way each time."""
    index = CropIndex(volumes.images, shape=(8, 8, 8))
    by = {"image0.zarr": "x", "image1.zarr": "y", "image2.zarr": "z"}
    seed = next(
        seed for seed in range(99)
        if len({place_of_group(group, seed) < 0.5 for group in by.values()}) == 2
    )  # fmt: skip
    parts = index.split(by=lambda image: by[image.name], fractions={"train": 0.5, "val": 0.5}, seed=seed)
    again = index.split(by=lambda image: by[image.name], fractions=(0.5, 0.5), seed=seed)
    assert list(parts) == ["train", "val"]
    assert [part.fingerprint for part in parts.values()] == [part.fingerprint for part in again]
    names = [image.name for part in again for image in part.images]
    assert sorted(names) == sorted(by)
    assert sum(len(part) for part in again) == len(index)


def test_few_images_come_out_as_asked(volumes):
    """Exactly so many images, whatever their hashes; named ones where they are to be; strata in every part."""
    index = CropIndex(volumes.images, shape=(8, 8, 8))
    for seed in range(9):
        parts = index.split(by="array", fractions={"train": 2 / 3, "val": 1 / 3}, exact=True, seed=seed)
        assert [len(part.images) for part in parts.values()] == [2, 1]
    parts = index.split(by="array", groups={"val": ["image1.zarr"]})
    assert [[image.name for image in parts[name].images] for name in ("val", "train")] == [
        ["image1.zarr"], ["image0.zarr", "image2.zarr"],
    ]  # fmt: skip
    images = [Who(f"p{n}", plate="a" if n < 4 else "b") for n in range(8)]
    rule = SplitRule.of((0.5, 0.5), None, exact=True, seed=1)
    for part in split_images(images, by="array", rule=rule, stratify="plate"):
        assert sorted(images[number].plate for number in part) == ["a", "a", "b", "b"]
    with pytest.raises(ConfigError, match="one value for all images of a group; 'a' has 'p0' and 'p1'"):
        split_images(images, by="plate", rule=rule, stratify="array")
