"""Small OME-Zarr stores, written by hand after the specification; and ways to damage metadata."""

import copy
import json

import numpy as np
import pytest
import zarr

SCALE = (1.0, 2.0, 0.5, 0.25)
AXES = [
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "micrometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]

ODD = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**70, 0.5, 4.0, 1e308, float("nan"), "", "2",
    "0x7fc00000", "NaN", "Infinity", "little", "big", "/", ".", "v2", "default", "bytes", "zstd", "gzip",
    "crc32c", "blosc", "C", "F", "<f4", ">f4", "|u1", "|b1", "float16", "int64", "complex64", "bool", "r16",
    "string", "|S4", "<U2", "<M8[s]", [], {}, [0], [1], [4, 4], [3, 2], [None], {"name": "bytes"}, {"name":
    "gzip", "configuration": {"level": 1}}, {"must_understand": False}, {"id": "zlib", "level": 1}, {"id":
    "zstd"}, {"id": "lz4"}, {"id": "blosc"}, {"id": "delta", "dtype": "<u2"}, {"name": "transpose",
    "configuration": {"order": [1, 0]}}, {"name": "numcodecs.lz4", "configuration": {}}, {"name": "zstd",
    "configuration": {"level": 1, "checksum": False}}, [["a", "<i4"], ["b", "<f8"]],
]  # fmt: skip


class Writer:
    """Writes groups and arrays of version 2 (OME-Zarr 0.4) or 3 (0.5)."""

    def __init__(self, zarr_format):
        self.zarr_format = zarr_format
        self.version = {2: "0.4", 3: "0.5"}[zarr_format]

    def group(self, path, ome):
        attributes = ome if self.zarr_format == 2 else {"ome": {"version": self.version, **ome}}
        path.mkdir(parents=True, exist_ok=True)
        zarr.create_group(path, zarr_format=self.zarr_format, attributes=attributes, overwrite=False)

    def array(self, path, shape, dtype="uint16"):
        array = zarr.create_array(path, shape=shape, dtype=dtype, chunks=shape, zarr_format=self.zarr_format)
        array[...] = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    def multiscale(self, num_levels=2, axes=AXES, scale=SCALE, **more):
        datasets = [
            {
                "path": str(level),
                "coordinateTransformations": [
                    {"type": "scale", "scale": [s * (2**level if i > 0 else 1) for i, s in enumerate(scale)]},
                    {"type": "translation", "translation": [0.0] + [float(level)] * (len(scale) - 1)},
                ],
            }
            for level in range(num_levels)
        ]
        return {"name": "cells", "axes": axes, "datasets": datasets, **more}

    def image(self, path, *, num_levels=2, channels=("dapi", "gfp"), labels=(), **more):
        omero = {"channels": [{"label": name, "color": "FFFFFF"} for name in channels]}
        self.group(path, {"multiscales": [self.multiscale(num_levels, **more)], "omero": omero})
        for level in range(num_levels):
            self.array(path / str(level), (len(channels), 8 >> level, 16 >> level, 16 >> level))
        if labels:
            self.group(path / "labels", {"labels": list(labels)})
        for name in labels:
            self.group(path / "labels" / name, {"multiscales": [self.multiscale(1, AXES[1:], SCALE[1:])]})
            self.array(path / "labels" / name / "0", (8, 16, 16), "int32")

    def plate(self, path, wells=("A/1", "B/2"), num_fields=2, **more):
        rows, columns = (sorted({well.split("/")[part] for well in wells}) for part in (0, 1))
        plate = {
            "name": "screen",
            "rows": [{"name": name} for name in rows],
            "columns": [{"name": name} for name in columns],
            "wells": [
                {"path": well, "rowIndex": rows.index(well[0]), "columnIndex": columns.index(well[2:])}
                for well in wells
            ],
            "acquisitions": [{"id": 3, "name": "day 1"}],
            **more,
        }
        self.group(path, {"plate": plate})
        for well in wells:
            images = [{"path": str(number), "acquisition": 3} for number in range(num_fields)]
            self.group(path / well, {"well": {"images": images}})
            for number in range(num_fields):
                self.image(path / well / str(number), num_levels=1)


@pytest.fixture(params=[2, 3], ids=["0.4", "0.5"])
def writer(request):
    return Writer(request.param)


def edit_ome(path, change):
    """Apply a function to the OME-Zarr attributes of a group on disk."""
    file = path / "zarr.json"
    if file.exists():
        document = json.loads(file.read_text())
        change(document["attributes"]["ome"])
    else:
        file = path / ".zattrs"
        document = json.loads(file.read_text())
        change(document)
    file.write_text(json.dumps(document))


@pytest.fixture
def edit():
    return edit_ome


def spots(value, path=()):
    """Every place in a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from spots(value[key], (*path, key))


def fitting(value, rng):
    """Another value, mostly of the same type, so that many documents still make sense."""
    alike = [odd for odd in ODD if type(odd) is type(value)]
    return copy.deepcopy(rng.choice(alike if alike and rng.random() < 0.8 else ODD))


def mutated(document, rng):
    """A copy with one place (seldom more) changed, removed, repeated or swapped for another part."""
    document = copy.deepcopy(document)
    while True:
        *path, last = rng.choice([path for path in spots(document) if path])
        holder = document
        for key in path:
            holder = holder[key]
        action = rng.random()
        if action < 0.1:
            del holder[last]
        elif action < 0.4 and isinstance(holder, list):
            holder.insert(rng.randint(0, len(holder)), fitting(rng.choice(holder), rng))
        elif action < 0.5 and isinstance(holder, dict):
            key = rng.choice(["extra", "level", "checksum", "endian", "separator", "configuration", "filters"])
            holder[key] = copy.deepcopy(rng.choice(ODD))
        else:
            holder[last] = fitting(holder[last], rng)
        if not document or rng.random() < 0.75:
            return document


@pytest.fixture
def mutate():
    """A function that returns a changed copy of a JSON object, given a generator of random numbers."""
    return mutated
