"""Opens the arrays of samples ahead, each once, and turns their crops into boxes: levels, channels, shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np

from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import (
    BudgetExceeded,
    DamacyError,
    DecodeError,
    InvalidSample,
    NotFound,
    RankMismatch,
    ShutdownError,
    StorageError,
    box_text,
    sample_error,
)
from rankwise.data.crops.fields import FieldBoxes
from rankwise.data.crops.sample import Crop, Sample
from rankwise.data.store.meta.nodes import read_node, resolve_place
from rankwise.data.store.meta.tree import STORES, StoredNodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.images import Image, open_image
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningStats:
    """Counts of opened arrays.

    Attributes:
        hits: arrays that were already open, or being opened.
        misses: arrays that had to be opened.
        active: arrays being opened now.
        max_active: largest number of such arrays at any time.
        delays: number of delays injected by a latency model.
        total_delay_s: their sum.
        max_delay_s: the longest.
    """

    hits: int = 0
    misses: int = 0
    active: int = 0
    max_active: int = 0
    delays: int = 0
    total_delay_s: float = 0.0
    max_delay_s: float = 0.0


class Openings:
    """The most recently opened arrays and images, by URI; thread-safe."""

    def __init__(self, config: Config) -> None:
        self._capacity, self._latency = config.num_metas, config.metadata_latency
        self._remote = None if config.remote is None else RemoteFiles(config.remote)
        self._nodes = STORES if self._remote is None else StoredNodes(self._remote)
        self._kept: OrderedDict[str, Future[Image]] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(config.metadata_io_concurrency, thread_name_prefix="rankwise-open")
        self._counts = asdict(OpeningStats())

    @property
    def stats(self) -> OpeningStats:
        """Counts so far."""
        with self._lock:
            return OpeningStats(**self._counts)

    def reset_delays(self) -> None:
        """Reset the counts of delays."""
        with self._lock:
            self._counts.update(delays=0, total_delay_s=0.0, max_delay_s=0.0)

    def start(self, uri: str) -> Future[Image]:
        """Begin to open an array or image, unless it is already known.

        Raises:
            ShutdownError: this was closed.
        """
        with self._lock:
            found = self._kept.get(uri)
            if found is not None:
                self._counts["hits"] += 1
                self._kept.move_to_end(uri)
                return found
            self._counts["misses"] += 1
            request = self._counts["misses"] - 1
            try:
                found = self._pool.submit(self._open, uri, request)
            except RuntimeError as error:  # the pool is shut down
                raise ShutdownError("the pipeline was closed while arrays were being opened") from error
            self._kept[uri] = found
            if len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        found.add_done_callback(lambda future: self._forget_failure(uri, future))
        return found

    def get(self, uri: str, sample: int) -> Image:
        """Wait for an array or image and return it.

        Raises:
            NotFound: there is nothing at the URI.
            InvalidSample: there is something else.
            DecodeError: its metadata are damaged.
            StorageError: it cannot be read.
            ShutdownError: this was closed.
        """
        try:
            return self.start(uri).result()
        except DamacyError:
            raise
        except Exception as error:
            if self._closing.is_set():
                raise ShutdownError("the pipeline was closed while arrays were being opened") from error
            raise _explained(error, uri, sample, self._remote) from error

    def close(self) -> None:
        """Stop; openings in progress end by themselves."""
        self._closing.set()
        if self._remote is not None:
            self._remote.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _open(self, uri: str, request: int) -> Image:
        with self._lock:
            self._counts["active"] += 1
            self._counts["max_active"] = max(self._counts["max_active"], self._counts["active"])
        try:
            if self._latency is not None:
                delay_s = self._latency.delay_s(request)
                with self._lock:
                    self._counts["delays"] += 1
                    self._counts["total_delay_s"] += delay_s
                    self._counts["max_delay_s"] = max(self._counts["max_delay_s"], delay_s)
                self._closing.wait(delay_s)
            return open_image(uri, nodes=self._nodes)
        finally:
            with self._lock:
                self._counts["active"] -= 1

    def _forget_failure(self, uri: str, future: Future[Image]) -> None:
        """Forget a failed opening, so that the next sample that needs the array tries again."""
        if future.cancelled() or future.exception() is not None:
            with self._lock:
                if self._kept.get(uri) is future:
                    del self._kept[uri]


def _explained(error: Exception, uri: str, sample: int, remote: RemoteFiles | None) -> DamacyError:
    text = f"sample {sample} cannot be read: {uri} could not be opened: {error}"
    if isinstance(error, OSError) or not isinstance(error, DataError) or isinstance(error.__cause__, OSError):
        return StorageError(text, uri=uri, sample=sample)
    kind: type[DamacyError] = DecodeError
    with suppress(DataError):
        node = read_node(resolve_place(uri), remote)
        if node is None:
            kind = NotFound
        elif node.kind == "group" and "multiscales" in str(error):
            kind = InvalidSample
    return kind(text, uri=uri, sample=sample)


def crops_of(sample: Sample, config: Config) -> dict[str, Crop]:
    """Return the crops of a checked sample by field; a sample is the first one."""
    return {config.field: sample, **dict(sample.also)}


def check_sample(sample: object, config: Config, number: int) -> None:
    """Refuse an object that is not a sample, or does not fit the configuration; reads no array.

    Raises:
        InvalidSample: it has another type, other fields, or a box of another shape.
        RankMismatch: a box has another number of axes.
    """
    if not isinstance(sample, Sample):
        raise InvalidSample(
            f"sample {number} is a {type(sample).__name__}: push an iterable of Sample(uri, box)", sample=number
        )
    given = {name for name, _ in sample.also}
    if given != config.fields.keys():
        what = (
            f"sample {number} has boxes for the additional fields {sorted(given)}, but the configuration has "
            f"{sorted(config.fields)}: pass also={{name: Crop(uri, box)}} for each of them"
        )
        raise InvalidSample(what, uri=sample.uri, aabb=sample.aabb, sample=number)
    fields = config.all_fields
    for name, crop in crops_of(sample, config).items():
        wanted, got = tuple(fields[name].sample_shape), crop.shape
        if isinstance(crop.channel, tuple):
            got = (len(crop.channel), *got)
        if got == wanted or _long(got) == _long(wanted):
            continue
        kind = RankMismatch if len(_long(got)) != len(_long(wanted)) else InvalidSample
        what = "sample_shape" if crop is sample else f"sample_shape of field {name!r}"
        text = (
            f"sample {number}: its box {box_text(crop.aabb)} of {crop.uri} has the shape {list(got)}, but {what} is "
            f"{list(wanted)}; every box of a field must have that shape (axes of extent 1 may be omitted)"
        )
        raise kind(text, uri=crop.uri, aabb=crop.aabb, sample=number)


def _long(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its axes of extent 1."""
    return tuple(extent for extent in shape if extent != 1)


# The boxes for one field of one sample: their array, the first element of each, and the extent of all.
ArrayBoxes: TypeAlias = tuple[ArrayMeta, list[tuple[int, ...]], tuple[int, ...]]


def resolve(sample: Sample, number: int, config: Config, openings: Openings) -> dict[str, ArrayBoxes]:
    """Return the boxes of a sample by field, after waiting for its arrays to be opened.

    Raises:
        DamacyError: an array does not exist or cannot be opened, has no such level or channel, or exceeds a limit.
    """
    found = {}
    for name, crop in crops_of(sample, config).items():
        boxes = _boxes(crop, openings.get(crop.uri, number), number)
        _check_caps(boxes, crop, config, number)
        found[name] = boxes
    return found


def _boxes(crop: Crop, image: Image, number: int) -> ArrayBoxes:
    level = crop.level or 0
    if not -len(image.levels) <= level < len(image.levels):
        raise _unread(crop, number, f"it has {len(image.levels)} levels (0 is the finest), not a level {level}")
    array = image.levels[level].array
    start = tuple(first for first, _ in crop.aabb)
    if crop.channel is None:
        return array, [start], crop.shape
    axis = image.channel_axis
    if axis is None:
        names = ", ".join(each.name for each in image.axes)
        raise _unread(crop, number, f"it has no axis of channels (its axes: {names}): omit channel=")
    if len(start) + 1 != array.ndim:
        shape = list(array.shape)
        why = (
            f"with channel= a box has {array.ndim - 1} axes (those of shape {shape} but axis {axis}), not {len(start)}"
        )
        raise _unread(crop, number, why, RankMismatch)
    wanted = crop.channel if isinstance(crop.channel, tuple) else (crop.channel,)
    try:
        channels = [image.channel(one) for one in wanted]
    except DataError as error:
        raise _unread(crop, number, str(error)) from error
    starts = [(*start[:axis], channel, *start[axis:]) for channel in channels]
    return array, starts, (*crop.shape[:axis], 1, *crop.shape[axis:])


def _check_caps(boxes: ArrayBoxes, crop: Crop, config: Config, number: int) -> None:
    (array, starts, shape), limit = boxes, config.max_chunk_uncompressed_bytes
    if limit is not None and array.chunk_bytes > limit:
        size = array.chunk_bytes
        why = f"its chunks have {size} bytes decoded, but max_chunk_uncompressed_bytes is {limit}: raise it to {size}"
        raise _unread(crop, number, why, BudgetExceeded)
    most = config.max_shards_per_sample
    if most is None or array.ndim != len(shape):
        return
    low = np.maximum(starts, 0)  # what is outside the array is in no file
    high = np.minimum(np.add(starts, shape), array.shape)
    files = np.maximum((high - 1) // array.files - low // array.files + 1, 0)
    touched = int(files.prod(axis=1).sum())
    if touched > most:
        why = f"it touches {touched} files, but max_shards_per_sample is {most}: raise it to {touched} or omit it"
        raise _unread(crop, number, why)


def _unread(crop: Crop, number: int, why: str, kind: type[DamacyError] = InvalidSample) -> DamacyError:
    return sample_error(kind, why, uri=crop.uri, aabb=crop.aabb, sample=number)


def grouped(resolved: Mapping[int, Mapping[str, ArrayBoxes]], field: str) -> list[FieldBoxes]:
    """Return the boxes that fill a field, grouped by shape, from those of each place in the batch, ascending."""
    by_shape: dict[tuple[tuple[int, ...], int], dict[int, ArrayBoxes]] = {}
    for row, sample in resolved.items():
        _, starts, shape = sample[field]
        by_shape.setdefault((shape, len(starts)), {})[row] = sample[field]
    found = []
    for (shape, per_sample), boxes in by_shape.items():
        arrays = {array.place: array for array, _, _ in boxes.values()}
        numbers = {place: number for number, place in enumerate(arrays)}
        which = [numbers[array.place] for array, _, _ in boxes.values()]
        found.append(
            FieldBoxes(
                arrays=tuple(arrays.values()),
                which=np.repeat(np.array(which, dtype=np.int64), per_sample),
                starts=np.array([start for _, starts, _ in boxes.values() for start in starts], dtype=np.int64),
                shape=shape,
                rows=np.array(list(boxes), dtype=np.int64),
            )
        )
    return found
