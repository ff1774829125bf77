"""Finds the cells from which crops are drawn; each rank reads a part of the files."""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankwise._files import write_whole
from rankwise.data.contract import BoolArray, NDArray
from rankwise.data.crops.index.cells import CellGrid, given_cells, label_cells, placed_cells, pooling
from rankwise.data.crops.index.frame import Frame
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.rules import Foreground, Mask
from rankwise.data.store.reader import BoxReader

__all__ = ["CellFinder", "Maps"]

# Shape and cells of each map, eight cells to a byte.
Maps = dict[Hashable, tuple[tuple[int, ...], npt.NDArray[np.uint8]]]
_LOG = logging.getLogger("rankwise.crops")


class CellFinder:
    """Finds the cells of images that a mask or labels choose.

    A map is made by reading an array once, completely. In the folder its key consists of the array's place, metadata,
    and the sizes and times of its files, so that an array that was modified is read again.

    Args:
        folder: folder for maps, shared between processes; None = in this process only.

    Attributes:
        maps: the maps so far, also those of other ranks; they live as long as the index, so that its parts and the
            stages of a curriculum need not read again.
        num_read: number of arrays read here.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self.maps: Maps = {}
        self.num_read = 0

    def mask_cells(self, images: Sequence[CropImage], mask: Mask, frame: Frame, used: BoolArray) -> list[CellGrid]:
        """Return the cells in which crops may be, for each image; empty for unused images."""
        if isinstance(mask.source, str):
            return self.foreground_cells(images, Foreground(mask.source, 1.0, level=mask.level), frame, used)
        found = []
        for number, image in enumerate(images):
            if used[number]:
                key = ("mask", image.name, frame.levels[number].array.place)
                given = self._map(key, partial(_asked, mask.source, image, frame.num_axes))
                found.append(given_cells(given, frame, number, name=image.name))
            else:
                found.append(_no_cells(frame, number))
        return found

    def foreground_cells(
        self, images: Sequence[CropImage], wanted: Foreground, frame: Frame, used: BoolArray
    ) -> list[CellGrid]:
        """Return the cells that contain one of the wanted labels, for each image; empty for unused images."""
        found = []
        for number, image in enumerate(images):
            if used[number]:
                level = image.level(wanted.part, wanted.level)
                pool = pooling(level, frame, number)
                key = ("labels", level.array.place, level.array.fingerprint, pool, wanted.classes)
                cells = self._map(key, partial(self._labelled, level, pool, wanted.classes))
                found.append(placed_cells(cells, pool, level, frame, number))
            else:
                found.append(_no_cells(frame, number))
        return found

    def _map(self, key: Hashable, find: Callable[[], BoolArray]) -> BoolArray:
        if key not in self.maps:
            cells = find()
            self.maps[key] = cells.shape, np.packbits(cells)
        shape, packed = self.maps[key]
        return _unpacked(packed, shape)

    def _labelled(self, level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None) -> BoolArray:
        """Return the cells with one of the labels: from the folder, else from the array."""
        path = None if self._folder is None else self._folder / f"{_key(level, pool, classes)}.npy"
        if path is not None and path.is_file():
            packed = np.load(path, allow_pickle=False)
            shape = tuple(-(-size // step) for size, step in zip(level.array.shape, pool, strict=True))
            if packed.dtype == np.uint8 and packed.size == -(-int(np.prod(shape)) // 8):
                return _unpacked(packed, shape)
        self.num_read += 1
        _LOG.info("reading the labels in %s %s once", level.array.place, list(level.array.shape))
        with BoxReader(cache=0) as reader:
            cells = label_cells(level, pool, classes, reader)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.save(content, np.packbits(cells))
            # Several ranks may make the same map at once: each writes its own file, and the last one remains.
            write_whole(path, content.getvalue(), durable=False)
        return cells


def _unpacked(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> BoolArray:
    cells: BoolArray = np.unpackbits(packed, count=int(np.prod(shape))).astype(np.bool_).reshape(shape)
    return cells


def _asked(source: Callable[[CropImage], NDArray | None], image: CropImage, num_axes: int) -> BoolArray:
    """Return where a user function allows crops in an image; None from it allows all."""
    given = source(image)
    return np.ones((1,) * num_axes, dtype=np.bool_) if given is None else np.asarray(given) != 0


def _no_cells(frame: Frame, image: int) -> CellGrid:
    cells = np.zeros((1,) * frame.num_axes, dtype=np.bool_)
    return CellGrid(chosen=cells, size=frame.sizes[image].astype(np.float64), corner=np.zeros(frame.num_axes))


def _key(level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None) -> str:
    array = level.array
    facts = (1, array.place, array.fingerprint, _files(array.place, remote=array.is_remote), pool, classes)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _files(place: str, *, remote: bool) -> tuple[int, int, int]:
    """Return number, bytes and newest time of a local array's files; an array behind a URL is identified by name."""
    if remote:
        return 0, 0, 0
    num_files = num_bytes = newest = 0
    for folder, _, names in os.walk(place):
        for name in names:
            facts = (Path(folder) / name).stat()
            num_files, num_bytes, newest = num_files + 1, num_bytes + facts.st_size, max(newest, facts.st_mtime_ns)
    return num_files, num_bytes, newest
