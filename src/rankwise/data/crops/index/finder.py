"""Finds the cells from which crops are drawn; each rank reads a part of the files."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, NDArray
from rankwise.data.crops.index.cells import CellGrid, given_cells, label_cells, placed_cells, pooling
from rankwise.data.crops.index.frame import Frame
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.rules import Foreground, Mask
from rankwise.data.store.reader import BoxReader

__all__ = ["CellFinder", "SharedMaps"]


class SharedMaps:
    """Maps by key, eight cells to a byte; they live as long as the index, so that its parts need not read again."""

    def __init__(self) -> None:
        self._packed: dict[Hashable, tuple[tuple[int, ...], npt.NDArray[np.uint8]]] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def put(self, key: Hashable, cells: BoolArray) -> None:
        """Keep a map."""
        self._packed[key] = cells.shape, np.packbits(cells)

    def get(self, key: Hashable) -> BoolArray | None:
        """Return a map, None if it is not stored."""
        if key not in self._packed:
            return None
        shape, packed = self._packed[key]
        cells: BoolArray = np.unpackbits(packed, count=int(np.prod(shape))).astype(np.bool_).reshape(shape)
        return cells


_KEPT_BYTES = 64 << 20
_LOG = logging.getLogger("rankwise.crops")


class CellFinder:
    """Finds the cells of images that a mask or labels choose.

    A map is made by reading an array once, completely. Its key consists of the array's place, metadata, and the sizes
    and times of its files, so that an array that was modified is read again.

    Args:
        folder: folder for maps, shared between processes; None = in this process only.

    Attributes:
        shared: None, or the maps of all ranks: new maps are stored there, and existing ones are not made again.
        num_read: number of arrays read here.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._kept: OrderedDict[str, BoolArray] = OrderedDict()
        self.shared: SharedMaps | None = None
        self.num_read = 0

    def __getstate__(self) -> dict[str, object]:
        return {"_folder": self._folder, "_kept": OrderedDict(), "shared": self.shared, "num_read": 0}

    def mask_cells(self, images: Sequence[CropImage], mask: Mask, frame: Frame, used: BoolArray) -> list[CellGrid]:
        """Return the cells in which crops may be, for each image; empty for unused images."""
        found = []
        for number, image in enumerate(images):
            if not used[number]:
                found.append(_uniform(frame, number, chosen=False))
            elif isinstance(mask.source, str):
                wanted = Foreground(mask.source, 1.0, level=mask.level)
                found.append(self._of_part(image, wanted, frame, number))
            else:
                place = ("mask", frame.levels[number].array.place)
                given = self._shared_or(place, partial(_asked, mask.source, image, frame.num_axes))
                found.append(given_cells(given, frame, number, name=image.name))
        return found

    def foreground_cells(
        self, images: Sequence[CropImage], wanted: Foreground, frame: Frame, used: BoolArray
    ) -> list[CellGrid]:
        """Return the cells that contain one of the wanted labels, for each image; empty for unused images."""
        return [
            self._of_part(image, wanted, frame, number) if used[number] else _uniform(frame, number, chosen=False)
            for number, image in enumerate(images)
        ]

    def _of_part(self, image: CropImage, wanted: Foreground, frame: Frame, number: int) -> CellGrid:
        level = image.level(wanted.part, wanted.level)
        pool = pooling(level, frame, number)
        return placed_cells(self._cells(level, pool, wanted.classes), pool, level, frame, number)

    def _shared_or(self, key: Hashable, find: Callable[[], BoolArray]) -> BoolArray:
        if self.shared is None:
            return find()
        cells = self.shared.get(key)
        if cells is None:
            cells = find()
            self.shared.put(key, cells)
        return cells

    def _cells(self, level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None) -> BoolArray:
        key = ("labels", level.array.place, level.array.fingerprint, pool, classes)
        return self._shared_or(key, partial(self._found, level, pool, classes))

    def _found(self, level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None) -> BoolArray:
        key = _key(level, pool, classes)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        shape = tuple(-(-size // step) for size, step in zip(level.array.shape, pool, strict=True))
        cells = self._load(key, shape)
        if cells is None:
            self.num_read += 1
            _LOG.info("reading the labels in %s %s once", level.array.place, list(level.array.shape))
            with BoxReader(cache=0) as reader:
                cells = label_cells(level, pool, classes, reader)
            self._save(key, cells)
        self._kept[key] = cells
        while sum(kept.nbytes for kept in self._kept.values()) > _KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return cells

    def _load(self, key: str, shape: tuple[int, ...]) -> BoolArray | None:
        if self._folder is None or not (path := self._folder / f"{key}.npy").is_file():
            return None
        packed = np.load(path, allow_pickle=False)
        size = int(np.prod(shape))
        if packed.dtype != np.uint8 or packed.size != -(-size // 8):
            return None
        cells: BoolArray = np.unpackbits(packed, count=size).astype(np.bool_).reshape(shape)
        return cells

    def _save(self, key: str, cells: BoolArray) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # Several ranks may make the same map at once: each writes its own file, and the last one remains.
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, np.packbits(cells))
            Path(name).replace(self._folder / f"{key}.npy")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _asked(source: Callable[[CropImage], NDArray | None], image: CropImage, num_axes: int) -> BoolArray:
    """Return where a user function allows crops in an image; None from it allows all."""
    given = source(image)
    return np.ones((1,) * num_axes, dtype=np.bool_) if given is None else np.asarray(given) != 0


def _uniform(frame: Frame, image: int, *, chosen: bool) -> CellGrid:
    cells = np.full((1,) * frame.num_axes, chosen)
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
