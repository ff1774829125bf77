"""Small OME-Zarr stores, written by hand after the specification."""

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
