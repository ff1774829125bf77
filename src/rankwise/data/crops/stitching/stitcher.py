"""`Stitcher`: writes the predictions of overlapping tiles as whole volumes to disk, with any number of ranks."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from rankwise import vitals
from rankwise.data.contract import DType, NDArray, whole_number
from rankwise.data.contract.values import short_hash
from rankwise.data.crops.budget import Caps
from rankwise.data.crops.devices import place_in_world
from rankwise.data.crops.exceptions import BudgetExceeded
from rankwise.data.crops.index.crop_index import CropIndex
from rankwise.data.crops.index.image import CropImage
from rankwise.data.crops.index.pipeline import IndexPipeline
from rankwise.data.crops.stitching.model import as_numpy, evaluating, model_digest, source_digest, unwrapped
from rankwise.data.crops.stitching.slabs import Canvas, Run, SlabPlan, TileOrder, Window, tile_window
from rankwise.data.crops.stitching.target import Target, grid_of, output_paths, output_values, wait_for_all
from rankwise.errors import ConfigError, DesyncError, StepError
from rankwise.tracking.terminal.progress import Progress
from rankwise.world import World

if TYPE_CHECKING:
    import torch

    from rankwise.data.feed import BatchTransform, Transform
    from rankwise.data.store.cache import ChunkCache
    from rankwise.data.store.remote import RemoteOptions

_LOG = logging.getLogger("rankwise.crops")
_PATIENCE_S = 600.0


class StitchOptions(TypedDict, total=False):
    """Arguments passed on to the `IndexPipeline` that reads the tiles, which documents them."""

    depth: int
    cache: ChunkCache | int
    threads: int | None
    remote: RemoteOptions | None
    max_gpu_memory_bytes: int | None
    max_host_memory_bytes: int | None
    transform: Transform | None
    batch_transform: BatchTransform | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchedVolume:
    """One stitched volume.

    Attributes:
        image: its image.
        path: the array, Zarr version 3.
        shape: its shape.
        dtype: its dtype.
        num_slabs: number of its slabs.
        num_made: slabs that this rank made now; others existed before, or were made by other ranks.
    """

    image: CropImage
    path: Path
    shape: tuple[int, ...]
    dtype: DType
    num_slabs: int
    num_made: int


class Stitcher:
    """Runs a model over all tiles of an index and writes the weighted means of its outputs to one array per image.

    Ranks divide the files of the output: each is written once, by one rank. Both ranks run the tiles at their common
    border, so no data are exchanged, and any number of ranks writes the same bits (on a CPU, with equally many threads
    per rank). A rank holds the current batches and the sums of incomplete tiles in memory, not the volume. Finished
    parts are recorded: after a kill, the same call, with any number of ranks, makes the missing ones. The array appears
    at its path when it is complete.

    Args:
        index: tiles, ``CropIndex(image, shape=..., stride=...)`` with a stride below the shape for overlap.
        output: path of the array; for several images a function of the image that returns it.
        model: a torch module (put into evaluation mode and run without gradients; if it is wrapped for data-
            parallel training, the module inside), or any function.
        predict: ``predict(model, batch)`` returns the model's output for a batch, [B, *shape], or
            [B, channels, *shape] if `channels` is given: for the elements of the tiles along the cropped axes of
            the reference. None calls ``model(batch[field])`` with the first field.
        channels: number of values for each element; None = one, without an axis of its own.
        finish: converts the weighted means of a part of the volume, [channels, *extents] (without the first axis
            if `channels` is None): a function that returns [*extents] or [K, *extents], each element from its own means
            alone, for example ``lambda means: means.argmax(0).astype("u1")``.
        dtype: dtype of the array; None = float32, or the dtype from `finish`.
        window: weights of a tile's elements: "gaussian" (smallest at its borders), "hann", "constant", or an array.
        batch_size: most tiles in one forward pass.
        chunks: chunk grid of the array along the cropped axes; None = chunks and shards of the reference.
        shards: its shards along the cropped axes; None = none if `chunks` is given.
        fill: value for places without a tile, which only a `mask` of the index allows.
        tag: any other input that decides the values, e.g. the name of a checkpoint: another tag makes another result.
        overwrite: replace an array at `output`, or an unfinished one beside it, if its inputs differ.
        durable: flush each file to disk before its slab is recorded, so that the record survives a power failure and
            not only a kill; False is faster for small files.
        progress: whether the main rank shows progress.
        device: device of the batches, see `IndexPipeline`.
        world: the ranks; None = `World.current()`.
        **options: how to read tiles, see `IndexPipeline`.

    Attributes:
        window_bytes: largest memory for the sums on a rank.

    Raises:
        ConfigError: arguments do not fit each other, or there are places without tiles.
        BudgetExceeded: the sums do not fit the memory.
    """

    def __init__(
        self,
        index: CropIndex,
        output: str | os.PathLike[str] | Callable[[CropImage], str | os.PathLike[str]],
        *,
        model: Any,
        predict: Callable[[Any, Any], Any] | None = None,
        channels: int | None = None,
        finish: Callable[[NDArray], Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        window: Window | NDArray = "gaussian",
        batch_size: int = 4,
        chunks: Sequence[int] | None = None,
        shards: Sequence[int] | None = None,
        fill: float = 0,
        tag: str = "",
        overwrite: bool = False,
        durable: bool = True,
        progress: bool = True,
        device: str | torch.device | None = "auto",
        world: World | None = None,
        **options: Unpack[StitchOptions],
    ) -> None:
        if not isinstance(index, CropIndex):
            raise ConfigError(f"a stitcher needs a CropIndex of tiles, got {type(index).__name__}")
        channels = None if channels is None else whole_number("channels", channels, least=1)
        self._batch_size = batch_size = whole_number("batch_size", batch_size, least=1)
        self.index = index
        self._model, self._predict = unwrapped(model), predict
        self._channels, self._finish = channels, finish
        self._overwrite, self._progress = overwrite, progress
        self._device, self._options = device, options
        self._world = World.current() if world is None else world
        frame = index.compiled(0).frame
        wanted = None if dtype is None else np.dtype(dtype)
        self._kept, self._dtype = output_values(finish, frame.shape, channels=channels, dtype=wanted)
        sums: DType = np.dtype(np.float64 if self._dtype == np.float64 else np.float32)
        self._window = tile_window(window, frame.shape).astype(sums)
        self._grids = [grid_of(frame, number, chunks, shards) for number in range(len(index.images))]
        files = np.array([file or chunk for chunk, file in self._grids], dtype=np.int64)
        self._plan = SlabPlan(index, files, channels=channels or 1, itemsize=sums.itemsize)
        self.window_bytes = self._plan.window_bytes
        caps = Caps(place=place_in_world(None, self._world), max_host_memory_bytes=options.get("max_host_memory_bytes"))
        if self.window_bytes > caps.host_bytes:
            raise BudgetExceeded(
                f"the sums of unfinished tiles need {self.window_bytes / 2**20:.0f} MiB on a rank, which may "
                f"use {caps.host_bytes / 2**20:.0f} MiB: use fewer channels, smaller chunks or shards, or stitch the "
                "volume in parts"
            )
        identity = {
            "version": 1, "index": index.fingerprint, "channels": channels, "batch_size": batch_size, "tag": tag,
            "window": short_hash(self._window.tobytes()), "model": model_digest(self._model),
            "predict": source_digest(predict), "finish": source_digest(finish),
        }  # fmt: skip
        self._targets = [
            self._target(path, number, fill=fill, identity=identity, durable=durable)
            for number, path in enumerate(output_paths(output, index.images))
        ]

    def _target(self, path: Path, number: int, *, fill: float, identity: dict[str, Any], durable: bool) -> Target:
        frame, (chunk, shard) = self._plan.frame, self._grids[number]
        lead = () if self._kept is None else (self._kept,)

        def with_channels(extents: Sequence[int], extra: tuple[int, ...]) -> list[int]:
            return [*extents[: frame.num_stepped], *extra, *extents[frame.num_stepped :]]

        axes = [str(axis) for axis in frame.axes]
        return Target(
            path,
            shape=with_channels(frame.sizes[number].tolist(), lead),
            chunks=with_channels(chunk, () if self._kept is None else (1,)),
            shards=None if shard is None else with_channels(shard, lead),
            dtype=self._dtype,
            fill=fill,
            axes=[*axes[: frame.num_stepped], *["c"] * len(lead), *axes[frame.num_stepped :]],
            identity={**identity, "image": self.index.images[number].name},
            durable=durable,
        )

    def run(self) -> tuple[StitchedVolume, ...]:
        """Stitch the missing parts; every rank calls it, and it returns when all parts exist.

        Returns:
            One volume for each image of the index.

        Raises:
            StepError: the model's output has another form than announced, or values that are not finite.
            DataError: a tile cannot be read, or there is something else at the output.
            DesyncError: another rank failed, or has other inputs.
        """
        world = self._world
        done = world.from_main(self._prepared)
        self._compare(world)
        unfinished = [target for target, made in zip(self._targets, done, strict=True) if made is not None]
        left = [
            (image, slab)
            for image, made in enumerate(done)
            if made is not None
            for slab in range(self._plan.num_slabs(image))
            if slab not in made
        ]
        owners = self._plan.owners(left, world.world_size)
        mine = [left[at] for at in np.flatnonzero(owners == world.rank).tolist()]
        error: BaseException | None = None
        try:
            self._stitch(mine, resumed=any(done))
        except Exception as caught:  # noqa: BLE001  (told to all ranks, then raised)
            error = caught
            for target in unfinished:
                (target.partial / "failed").touch()
        if error is None:
            waiting = [
                (target, [slab for at, slab in left if at == image]) for image, target in enumerate(self._targets)
            ]
            wait_for_all(world, waiting, patience_s=_PATIENCE_S, beat=lambda: vitals.beat(phase="stitch"))
        world.raise_together(error)
        world.from_main(lambda: list(map(Target.publish, unfinished)))
        return tuple(
            StitchedVolume(
                image=self.index.images[image],
                path=target.path,
                shape=target.shape,
                dtype=target.dtype,
                num_slabs=self._plan.num_slabs(image),
                num_made=sum(at == image for at, _ in mine),
            )
            for image, target in enumerate(self._targets)
        )

    def _prepared(self) -> list[set[int] | None]:
        """Return the finished slabs of each volume; None = all, and it is at its path."""
        finished = [target.is_finished(overwrite=self._overwrite) for target in self._targets]
        return [
            None if whole else target.prepare(self._plan.num_slabs(image), overwrite=self._overwrite)
            for image, (target, whole) in enumerate(zip(self._targets, finished, strict=True))
        ]

    def _compare(self, world: World) -> None:
        """Raise an error on ranks with different inputs before the first tile."""
        identities = world.all_gather_object([target.identity for target in self._targets])
        for name in identities[0][0]:
            differing = [rank for rank, found in enumerate(identities) if found[0][name] != identities[0][0][name]]
            if differing:
                raise DesyncError(
                    f"ranks {', '.join(map(str, differing))} would stitch with another {name} than rank 0: every rank "
                    "must pass the same index, arguments and model weights"
                )

    def _stitch(self, slabs: Sequence[tuple[int, int]], *, resumed: bool) -> None:
        runs = list(self._plan.runs(slabs))
        cuts = [
            (layer.low + at, min(layer.low + at + self._batch_size, layer.high))
            for run in runs
            for layer in run.layers
            for at in range(0, layer.high - layer.low, self._batch_size)
        ]
        _LOG.info(
            "stitching %d slabs of %d volumes in %d batches%s; sums use %.1f MiB", len(slabs),
            len({image for image, _ in slabs}), len(cuts), ", resuming after those finished before" if resumed else "",
            self.window_bytes / 2**20,
        )  # fmt: skip
        if not cuts:
            self._sweep_all(runs, iter(()), 0)
            return
        order = TileOrder(self._plan.ids, cuts, fingerprint=self.index.fingerprint)
        # Each rank reads its own tiles: the pipeline sees a single rank, on a machine and device shared with others.
        alone = dataclasses.replace(self._world, rank=0, world_size=1)
        reading: dict[str, Any] = {"device": self._device, "world": alone, "across_epochs": False, **self._options}
        with IndexPipeline(self.index, order=order, **reading) as pipeline, evaluating(self._model):
            self._sweep_all(runs, (batch for step in pipeline for batch in step), len(cuts))

    def _sweep_all(self, runs: Sequence[Run], batches: Iterator[Any], num_batches: int) -> None:
        # Only the main rank shows progress; without progress it behaves like the others.
        shown = self._world if self._progress else dataclasses.replace(self._world, rank=1)
        with Progress(shown, total_steps=num_batches) as progress:
            step = 0
            for run in runs:
                canvas = self._plan.canvas(run, channels=self._channels or 1, window=self._window)
                left = list(run.slabs)
                for layer in run.layers:
                    while left and self._plan.span(run.image, left[0])[1] <= layer.start:
                        self._finish_slab(run, left.pop(0), canvas)
                    for _ in range(0, layer.high - layer.low, self._batch_size):
                        if (self._targets[run.image].partial / "failed").exists():
                            raise DesyncError("another rank failed, see its error; finished parts are kept")
                        batch = next(batches)
                        self._add(run, canvas, batch)
                        step += 1
                        vitals.beat(step=step, phase="stitch")
                        progress.update(step, samples=len(batch.ids))
                for slab in left:
                    self._finish_slab(run, slab, canvas)

    def _add(self, run: Run, canvas: Canvas, batch: Any) -> None:
        frame = self._plan.frame
        said = (
            self._model(batch[next(iter(self.index.takes))])
            if self._predict is None
            else self._predict(self._model, batch)
        )
        values = as_numpy(said)
        lead = () if self._channels is None else (self._channels,)
        wanted = (len(batch.ids), *lead, *frame.shape)
        if values.shape != wanted or values.dtype.kind not in "fiub":
            raise StepError(
                f"the model returned {values.dtype}{list(values.shape)} for {len(batch.ids)} tiles of image "
                f"{self.index.images[run.image].name!r}; a stitcher needs real numbers of shape {list(wanted)}: the "
                f"tiles, {'channels=' + str(self._channels) if lead else 'no channels (channels= sets how many)'}, and "
                "the shape of the index"
            )
        places = self.index.places(batch.ids, seed=0)
        values = values.astype(self._window.dtype, copy=False).reshape(len(values), self._channels or 1, *frame.shape)
        for value, start in zip(values, places.starts.tolist(), strict=True):
            if not np.isfinite(value).all():
                raise StepError(
                    f"the model returned a value that is not finite for the tile at {start} of image "
                    f"{self.index.images[run.image].name!r}: it would spoil all places that the tile shares with others"
                )
            canvas.add(start[frame.num_stepped :], value)

    def _finish_slab(self, run: Run, slab: int, canvas: Canvas) -> None:
        frame, target = self._plan.frame, self._targets[run.image]
        low, high = self._plan.span(run.image, slab)
        means, missing = canvas.take(high)
        if missing.all():
            target.record(slab)
            return
        means = means if self._channels is not None else means[0]
        values = means if self._finish is None else np.asarray(self._finish(means))
        wanted = missing.shape if self._kept is None else (self._kept, *missing.shape)
        if values.shape != wanted:
            raise StepError(
                f"finish= returned shape {list(values.shape)} for means of {list(means.shape)}, not {list(wanted)}"
            )
        values = values.astype(self._dtype)
        values[(..., missing) if self._kept is not None else missing] = target.fill
        region: list[int | slice] = [*run.stepped, *[slice(0, size) for size in target.shape[frame.num_stepped :]]]
        region[self._plan.sweep + (self._kept is not None)] = slice(low, high)
        target.write(slab, tuple(region), values)
