"""The output array of a stitched volume: unfinished beside its path, complete at its path, with a record of slabs."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankwise._files import fsync_folder, write_whole
from rankwise.data.contract import JSON, DType, NDArray
from rankwise.data.crops.index.layout import Frame
from rankwise.errors import ConfigError, DataError
from rankwise.world import World

_MARK = "rankwise_stitched"
_POLL_S = 0.1


class Target:
    """One output array on a local file system.

    Until it is complete it is at ``<path>.partial/array``, beside a file for each finished slab.
    """

    def __init__(
        self,
        path: Path,
        *,
        shape: Sequence[int],
        chunks: Sequence[int],
        shards: Sequence[int] | None,
        dtype: DType,
        fill: float,
        axes: Sequence[str],
        identity: Mapping[str, JSON],
        durable: bool,
    ) -> None:
        self.path, self._durable = path, durable
        self.shape, self.dtype = tuple(shape), dtype
        given = np.asarray(fill)
        with np.errstate(all="ignore"):
            if given.ndim or given.dtype.kind not in "biuf" or not (dtype.kind == "f" or given.astype(dtype) == given):
                raise ConfigError(f"fill= must be a number that {dtype} holds, got {fill!r}: use another fill or dtype")
        self.fill = given.item()  # JSON has no numbers of NumPy
        self._chunks, self._shards = tuple(chunks), None if shards is None else tuple(shards)
        self._axes = tuple(axes)
        self.identity = {
            **identity,
            "shape": list(self.shape), "chunks": list(chunks), "shards": None if shards is None else list(shards),
            "dtype": dtype.name, "fill": "NaN" if np.isnan(given) else self.fill,  # NaN would differ from itself
        }  # fmt: skip
        self.partial = path.with_name(path.name + ".partial")
        self._array: Any = None
        self._flushed = {self.partial / "array"}

    def is_finished(self, *, overwrite: bool) -> bool:
        """Return whether the complete array already exists.

        Raises:
            DataError: there is something else.
        """
        if not self.path.exists():
            return False
        different = self._differences(_mark_of(self.path))
        if not different:
            shutil.rmtree(self.partial, ignore_errors=True)  # may remain after a kill in `publish`
            return True
        if overwrite:
            return False
        raise DataError(
            f"{self.path} holds a different result than would be stitched here ({different}): choose another output, "
            "remove it, or pass overwrite=True"
        )

    def prepare(self, num_slabs: int, *, overwrite: bool) -> set[int]:
        """Begin, or continue the work of an earlier run; return the finished slabs.

        Raises:
            DataError: the unfinished array has other inputs.
        """
        plan = self.partial / "plan.json"
        if plan.exists() and (self.partial / "array").exists():
            different = self._differences(json.loads(plan.read_text()))
            if not different:
                (self.partial / "failed").unlink(missing_ok=True)
                done = {int(path.name) for path in (self.partial / "done").iterdir() if path.name.isdecimal()}
                return {slab for slab in done if slab < num_slabs}
            if not overwrite:
                raise DataError(
                    f"{self.partial} holds the unfinished result of another call ({different}): continue with the "
                    "same arguments, remove it, or pass overwrite=True"
                )
        shutil.rmtree(self.partial, ignore_errors=True)
        (self.partial / "done").mkdir(parents=True)
        import zarr

        zarr.create_array(
            str(self.partial / "array"),
            shape=self.shape,
            chunks=self._chunks,
            shards=self._shards,
            dtype=self.dtype,
            fill_value=self.fill,
            dimension_names=self._axes,
            attributes={_MARK: dict(self.identity)},
        )
        write_whole(plan, json.dumps(self.identity, indent=1).encode())
        return set()

    def write(self, slab: int, region: tuple[int | slice, ...], values: NDArray) -> None:
        """Write whole files of the array and record the slab."""
        if self._array is None:
            import zarr

            self._array = zarr.open_array(str(self.partial / "array"), mode="r+")
        self._array[region] = values
        if self._durable:
            self._flush(region)
        self.record(slab)

    def record(self, slab: int) -> None:
        """Record that a slab is finished."""
        write_whole(self.partial / "done" / str(slab), b"", durable=self._durable)

    def _flush(self, region: tuple[int | slice, ...]) -> None:
        """Flush everything recorded to disk: the files of a region, and their folders."""
        files = self._shards or self._chunks
        spans = []
        for part, size, extent in zip(region, self.shape, files, strict=True):
            low, high = (part, part + 1) if isinstance(part, int) else part.indices(size)[:2]
            spans.append(range(low // extent, -(-high // extent)))
        folders: set[Path] = set()
        for place in np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, len(spans)).tolist():
            file = self.partial / "array" / "c" / "/".join(map(str, place))
            if file.exists():  # a chunk of the fill value alone has no file
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
                folder = file.parent
                folders.add(folder)
                while folder not in self._flushed:  # a new one: it is recorded in the folder above
                    self._flushed.add(folder)
                    folder = folder.parent
                    folders.add(folder)
        for folder in folders:
            fsync_folder(folder)

    def publish(self) -> None:
        """Move the complete array to its path."""
        old = self.partial / "old"
        if self.path.exists():
            self.path.replace(old)
        (self.partial / "array").replace(self.path)
        fsync_folder(self.path.parent)
        shutil.rmtree(self.partial)

    def _differences(self, found: Mapping[str, Any] | None) -> str:
        """Return the differences from the requested inputs, in words; empty if there are none."""
        if found is None:
            return "it was not stitched"
        wanted = json.loads(json.dumps(self.identity))
        names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        return ", ".join(f"{name}: {found.get(name)!r:.60}, here {wanted.get(name)!r:.60}" for name in names)


def _mark_of(path: Path) -> Mapping[str, Any] | None:
    try:
        attributes = json.loads((path / "zarr.json").read_text())["attributes"]
        mark = attributes[_MARK]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return mark if isinstance(mark, Mapping) else None


def wait_for_all(
    world: World, targets: Iterable[tuple[Target, Collection[int]]], *, patience_s: float, beat: Callable[[], None]
) -> None:
    """Wait until all ranks have finished their slabs, one has failed, or nothing was finished for `patience_s` seconds.

    Ranks may finish further apart than the timeout of a collective: the records on disk show who is done.
    """
    left = [(target, set(slabs)) for target, slabs in targets]
    changed_s = time.monotonic()
    while any(slabs for _, slabs in left) and time.monotonic() - changed_s < patience_s:
        before = sum(len(slabs) for _, slabs in left)
        for target, slabs in left:
            if (target.partial / "failed").exists():
                return
            slabs -= {slab for slab in slabs if (target.partial / "done" / str(slab)).exists()}
        if sum(len(slabs) for _, slabs in left) < before:
            changed_s = time.monotonic()
        if world.world_size == 1:
            return
        beat()
        time.sleep(_POLL_S)


def output_paths(output: Any, images: Sequence[Any]) -> list[Path]:
    """Return the path of each image's array.

    Raises:
        ConfigError: two images have the same path, or it is not a local path.
    """
    if callable(output):
        given = [output(image) for image in images]
    elif len(images) == 1:
        given = [output]
    else:
        raise ConfigError(
            f"the index has {len(images)} images: pass output= as a function of an image that returns its path, such "
            'as lambda image: f"stitched/{image.name}"'
        )
    for path in given:
        if not isinstance(path, str | os.PathLike) or "://" in os.fspath(path):
            raise ConfigError(f"output= must be a path of a local file system, got {path!r}")
    paths = [Path(path).absolute() for path in given]
    path, count = Counter(paths).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"several images would be stitched into {path}: output= needs a separate path for each")
    return paths


def grid_of(
    frame: Frame, image: int, chunks: Sequence[int] | None, shards: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the chunks and the shards of an image's output along the axes of the reference, 1 along stepped ones.

    Raises:
        ConfigError: they do not fit the axes or each other.
    """
    num_stepped = frame.num_stepped
    if chunks is None:
        meta = frame.levels[image].array
        chunks = [meta.chunks[axis] for axis in frame.where[num_stepped:]]
        if shards is None and meta.sharded:
            shards = [meta.files[axis] for axis in frame.where[num_stepped:]]
    for name, given in (("chunks", chunks), ("shards", shards)):
        if given is not None and (len(given) != len(frame.shape) or min(given) < 1):
            raise ConfigError(
                f"{name}= needs an extent of at least 1 for each of {len(frame.shape)} cropped axes, got {list(given)}"
            )
    if shards is not None and any(shard % chunk for shard, chunk in zip(shards, chunks, strict=True)):
        raise ConfigError(f"shards={list(shards)} must be multiples of chunks={list(chunks)}")
    lead = (1,) * num_stepped
    return (*lead, *map(int, chunks)), None if shards is None else (*lead, *map(int, shards))


def output_values(
    finish: Callable[[NDArray], Any] | None, extents: Sequence[int], *, channels: int | None, dtype: DType | None
) -> tuple[int | None, DType]:
    """Return the number of values for each place of the output (None = no such axis), and their dtype.

    Calls `finish` with a few zeros.

    Raises:
        ConfigError: `finish` returns another shape or a dtype that cannot be converted, or is needed and missing.
    """
    if finish is None:
        if dtype is not None and dtype.kind != "f":
            raise ConfigError(f"means of predictions are fractions: dtype={dtype} needs finish=, which rounds them")
        return channels, dtype or np.dtype(np.float32)
    few = tuple(min(extent, 2) for extent in extents)
    made = np.asarray(finish(np.zeros((*(() if channels is None else (channels,)), *few), dtype=np.float32)))
    if few not in (made.shape, made.shape[1:]):
        raise ConfigError(
            f"finish= gets the means of a part of the volume and must return {list(few)} or [K, "
            f"{', '.join(map(str, few))}] for one of {list(few)}; it returned {list(made.shape)}"
        )
    if dtype is not None and not np.can_cast(made.dtype, dtype, "same_kind"):
        raise ConfigError(f"finish= returns {made.dtype}, which dtype={dtype} cannot hold: convert inside finish=")
    return (None if made.shape == few else int(made.shape[0])), dtype or made.dtype
