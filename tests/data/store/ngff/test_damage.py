"""Damaged OME-Zarr metadata: an own error or an answer, never another exception."""

import json
import random

import pytest

from rankwise.data.store import build_catalogue, iter_images, open_image, open_plate
from rankwise.errors import DataError


def answers(place):
    """Everything that can be asked of a plate, as far as errors of ours allow; return how many were answered."""
    answered = 0
    for ask in (
        lambda: [field.open() for well in open_plate(place) for field in well.fields()],
        lambda: list(iter_images(place)),
        lambda: build_catalogue([place], workers=1),
        lambda: open_image(place / "A" / "1" / "0").level_for(1),
        lambda: open_image(place / "A" / "1" / "0").channel("dapi"),
    ):
        try:
            ask()
            answered += 1
        except DataError:
            pass
    return answered


def run(writer, place, mutate, num_cases, seed):
    writer.plate(place, wells=("A/1",), num_fields=1)
    rng = random.Random(seed)
    files = [path for path in sorted(place.rglob("*")) if path.name in (".zattrs", "zarr.json")]
    answered = []
    for _ in range(num_cases):
        file = rng.choice(files)
        text = file.read_text()
        changed = json.dumps(mutate(json.loads(text), rng)) if len(text) > 2 else text
        file.write_text(changed)
        try:
            answered.append(answers(place))
        except Exception as error:
            raise AssertionError(f"{file}: {changed}") from error
        file.write_text(text)
    return answered


@pytest.mark.parametrize("seed", range(2))
def test_damaged_metadata(writer, tmp_path, mutate, seed):
    """Changed axes, levels, transformations, channels, wells and fields give our errors or an answer."""
    answered = run(writer, tmp_path / "p", mutate, 60, seed)
    assert max(answered) > min(answered)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 12))
def test_damaged_metadata_at_length(writer, tmp_path, mutate, seed):
    """The same, ten thousand times."""
    assert len(run(writer, tmp_path / "p", mutate, 2500, seed)) == 2500
