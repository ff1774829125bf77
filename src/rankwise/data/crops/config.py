"""What a user sets: `Config`, all settings of a stream of crops, checked on construction; and the log."""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from rankwise.data.contract import DType, whole_number
from rankwise.data.crops.devices import NumaStrategy, chosen_strategy
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.fields import MASK_SUFFIX, CropField, Normalise, check_normalise
from rankwise.data.crops.sample import Dtype, DtypeLike, parse_dtype, resolved_dtype
from rankwise.data.feed import BatchTransform, Transform
from rankwise.data.feed.transform import check_transform
from rankwise.data.store.boxes import Pad
from rankwise.data.store.remote import RemoteOptions
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("rankwise.crops")
_MOST = 2**32 - 1
_RANGES: Mapping[str, tuple[int, float]] = {
    "samples_per_batch": (1, math.inf),
    "max_gpu_memory_bytes": (1, math.inf),
    "max_host_memory_bytes": (1, math.inf),
    "cache_bytes": (0, math.inf),
    "lookahead_samples": (1, math.inf),
    "max_chunk_uncompressed_bytes": (1, _MOST),
    "max_read_op_bytes": (1, _MOST),
    "host_buffer_waves": (2, 8),
    "max_chunks_per_wave": (1, 65535),
    "max_substreams_per_chunk": (1, 65535),
    "n_io_threads": (1, 1024),
    "metadata_io_concurrency": (1, 4096),
    "n_array_meta_cache": (1, math.inf),
    "n_shard_index_cache": (1, math.inf),
    "n_chunk_layout_cache": (1, math.inf),
    "max_shards_per_sample": (1, math.inf),
    "numa_node": (-1, math.inf),
}
_CACHES = ("n_array_meta_cache", "n_shard_index_cache", "n_chunk_layout_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Delay of request number n: `baseline_ns` plus a log-normal draw, at most `cap_ns`; a function of (seed, n).

    Attributes:
        baseline_ns: nanoseconds of every request.
        lognormal_mu: mean of the logarithm of the draw in nanoseconds.
        lognormal_sigma: its standard deviation; 0 with `lognormal_mu` 0 means no draw.
        cap_ns: longest delay.
        seed: seed of the draws.

    Raises:
        InvalidArgument: a number is negative or not finite.
    """

    baseline_ns: float = 0.0
    lognormal_mu: float = 0.0
    lognormal_sigma: float = 0.0
    cap_ns: float = 12e9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("baseline_ns", "lognormal_mu", "lognormal_sigma", "cap_ns"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{name} of a latency model must be finite and at least 0, got {value}")

    def delay_s(self, request: int) -> float:
        """Return the delay of a request in seconds."""
        drawn = 0.0
        if self.lognormal_mu or self.lognormal_sigma:
            rng = np.random.default_rng([self.seed, request])
            drawn = float(rng.lognormal(self.lognormal_mu, self.lognormal_sigma))
        return min(self.baseline_ns + drawn, self.cap_ns) * 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A further field of every sample, for example a label volume; ``Sample(also={name: Crop(...)})`` gives its box.

    Attributes:
        sample_shape: extent of one sample of the field, in stored axis order.
        dtype: dtype in the batch; the arrays' own unless given.
        pad, normalise, mask: see `Config`.
    """

    sample_shape: tuple[int, ...]
    dtype: DtypeLike = Dtype.NATIVE
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool | None = None

    def crop_field(self, native: DType | None) -> CropField:
        """Return the field of a batch; `native` is the meaning of `Dtype.NATIVE`."""
        return CropField(
            shape=tuple(self.sample_shape),
            dtype=resolved_dtype(parse_dtype(self.dtype), native),
            pad=self.pad,
            normalise=self.normalise,
            mask=self.pad is not None if self.mask is None else self.mask,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a `Pipeline`, which makes batches of pushed samples. Make variants with ``dataclasses.replace``.

    Sizes left at None are derived; a size that is too small is refused with a message that names the needed one. Zero
    is never a default.

    Attributes:
        samples_per_batch: samples of one batch of this rank, at least 1.
        sample_shape: extent of every crop, in stored axis order. A box may have further axes of extent 1.
        max_gpu_memory_bytes: hard limit for batches on the device (with the CPU as device: in host memory); divided
            if ranks share a GPU. None = limited by the existing memory only.
        max_host_memory_bytes: hard limit for all that the pipelines of this machine hold in host memory, divided by its
            ranks: batch buffers, scratch, decoded chunks. None = the existing memory.
        dtype: dtype of the crops: "f32", "bf16", "f16", "f64", integers ("u16", ...), "native" = the arrays' own; see
            `Dtype`. Narrowing to integers is checked value by value.
        field: name of the crops in the batch, ``batch["image"]``.
        fields: further fields of every sample, by name.
        pad: "fill", "edge" or "reflect" replaces voxels outside an array (by its fill value, the nearest voxel, the
            mirror image); None refuses boxes that extend beyond it.
        normalise: `Scaling` for all arrays, one per array, or a function of an array's metadata: ``x * scale + offset``
            is computed while the elements are cast.
        mask: make a field ``<name>_mask`` that is true for voxels inside their array; None = if `pad` is given.
        drop_last: keep a last batch with fewer than `samples_per_batch` samples back, for later pushes.
        on_bad_sample: "raise", or how many damaged samples may be skipped. Only damaged content is ever skipped.
        seed: seed of ``batch.key``.
        transform: ``transform(fields, key) -> fields`` for one sample, in NumPy, on the reader thread.
        batch_transform: ``batch_transform(fields, keys) -> fields`` for a batch, on the device, when it is popped.
        cache_bytes: decoded chunks kept in memory, 0 = none.
        lookahead_samples: samples pulled and opened ahead, at least `samples_per_batch`. None = two batches.
        max_chunk_uncompressed_bytes: largest accepted chunk, after decoding; a larger one raises
            BudgetExceeded. None = any.
        max_read_op_bytes: size limit of one request to an object store that joins neighbouring chunks, 1 to 2**32 - 1.
            Chunks of local files are read one by one, directly into the buffer from which they are decoded.
        host_buffer_waves: batch buffers, 2 to 8: those being read, ready, and held by the consumer. Fewer are
            used if the memory limits allow no more.
        max_chunks_per_wave, max_substreams_per_chunk, n_chunk_layout_cache: for GPU decoding only.
        n_io_threads: threads that read and decode, 1 to 1024; None = the cores that this rank may use.
        metadata_io_concurrency: arrays that are opened at the same time, 1 to 4096.
        n_array_meta_cache: number of arrays whose metadata are kept.
        n_shard_index_cache: shard indexes kept; None = 64 MiB of them.
        max_shards_per_sample: most files that one box may need. None = any number.
        device: number of a CUDA device, "cpu", "cuda:1" or another device of torch, "numpy" for NumPy arrays; None =
            the world's device (NumPy arrays without torch).
        pop_timeout_s: how long `Pipeline.pop` waits; None = for ever.
        enable_gds: True requests GPUDirect reads, which are not supported, and is refused. None and False are the same.
        numa_strategy: where reader threads run.
        numa_node: node for `NumaStrategy.PIN_TO`, else -1.
        remote: options for object stores (endpoint, credentials, timeouts); its `max_read_bytes` then replaces
            `max_read_op_bytes`. None = the environment's settings.
        metadata_latency: delays the opening of arrays, for tests.

    Raises:
        InvalidArgument: a value is out of range.
    """

    samples_per_batch: int
    sample_shape: tuple[int, ...]
    max_gpu_memory_bytes: int | None = None
    max_host_memory_bytes: int | None = None
    dtype: DtypeLike = Dtype.F32
    field: str = "image"
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool | None = None
    drop_last: bool = False
    on_bad_sample: Literal["raise"] | int = "raise"
    seed: int = 1889
    transform: Transform | None = None
    batch_transform: BatchTransform | None = None
    cache_bytes: int = 256 * 2**20
    lookahead_samples: int | None = None
    max_chunk_uncompressed_bytes: int | None = None
    max_read_op_bytes: int = 4 * 2**20
    host_buffer_waves: int = 4
    max_chunks_per_wave: int = 512
    max_substreams_per_chunk: int = 32
    n_io_threads: int | None = None
    metadata_io_concurrency: int = 64
    n_array_meta_cache: int | None = None
    n_shard_index_cache: int | None = None
    n_chunk_layout_cache: int | None = None
    max_shards_per_sample: int | None = None
    device: int | str | torch.device | None = None
    pop_timeout_s: float | None = 30.0
    enable_gds: bool | None = None
    numa_strategy: NumaStrategy = NumaStrategy.AUTO
    numa_node: int = -1
    remote: RemoteOptions | None = None
    metadata_latency: LatencyModel | None = None

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            object.__setattr__(self, name, value)

    @classmethod
    def default(cls, **values: Any) -> Self:
        """Return ``Config(**values)``."""
        return cls(**values)

    @property
    def lookahead(self) -> int:
        """Samples pulled ahead, derived if `lookahead_samples` is None."""
        return self.lookahead_samples or 2 * self.samples_per_batch

    @property
    def num_metas(self) -> int:
        """Arrays whose metadata are kept, derived if `n_array_meta_cache` is None."""
        return self.n_array_meta_cache or max(4096, 2 * (self.lookahead + 2 * self.samples_per_batch))

    @property
    def remote_options(self) -> RemoteOptions:
        """Options for object stores."""
        return RemoteOptions(max_read_bytes=self.max_read_op_bytes) if self.remote is None else self.remote

    @property
    def all_fields(self) -> dict[str, Field]:
        """The crops themselves and the further fields, by name, with masks decided."""
        first = Field(
            sample_shape=self.sample_shape,
            dtype=self.dtype,
            pad=self.pad,
            normalise=self.normalise,
            mask=self.mask,
        )
        return {self.field: first, **self.fields}


def _checked(config: Config) -> dict[str, Any]:
    """Return the values of a configuration in canonical form.

    Raises:
        InvalidArgument: one has a wrong type or is out of range, or two contradict each other.
    """
    values: dict[str, Any] = {name: _whole(config, name) for name in _RANGES}
    values["sample_shape"] = _shape(config.sample_shape, "sample_shape")
    values["dtype"] = parse_dtype(config.dtype)
    values["seed"] = whole_number("seed", config.seed, error=InvalidArgument)
    if not isinstance(config.fields, Mapping) or not all(isinstance(each, Field) for each in config.fields.values()):
        raise InvalidArgument(f"fields= must map names to Field(sample_shape=...); got {config.fields!r:.120}")
    values["fields"] = dict(config.fields)
    values["numa_strategy"] = chosen_strategy(config.numa_strategy, values["numa_node"])
    _check_fields(config, values["dtype"])
    _check_sizes(values)
    _check_choices(config)
    return values


def _whole(config: Config, name: str) -> int | None:
    value = getattr(config, name)
    optional = Config.__dataclass_fields__[name].default is None
    if value is None and optional:
        return None
    low, high = _RANGES[name]
    mend = "; None derives it" if optional else ""
    return whole_number(name, value, least=low, most=high, mend=mend, error=InvalidArgument)


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise InvalidArgument(f"{what} must be a tuple of integers, got {shape!r}") from None
    if not 1 <= len(extents) <= 31 or any(extent < 1 for extent in extents):
        raise InvalidArgument(f"{what} must have 1 to 31 extents, all at least 1; got {list(extents)}")
    return extents


def _check_fields(config: Config, dtype: Dtype) -> None:
    names = [config.field, *config.fields]
    if config.field in config.fields:
        raise InvalidArgument(f"the field {config.field!r} has the name of the crops' own field (field=): rename one")
    for name, each in config.all_fields.items():
        _shape(each.sample_shape, f"sample_shape of field {name!r}")
        wanted = dtype if name == config.field else parse_dtype(each.dtype)
        if each.pad not in (None, "fill", "edge", "reflect"):
            raise InvalidArgument(f'pad of field {name!r} must be "fill", "edge", "reflect" or None; got {each.pad!r}')
        try:
            check_normalise(each.normalise)
        except ConfigError as error:
            raise InvalidArgument(f"field {name!r}: {error}") from error
        floats = (Dtype.F32, Dtype.F64, Dtype.F16, Dtype.BF16)
        if each.normalise is not None and wanted not in floats:
            raise InvalidArgument(
                f"normalise of field {name!r} makes fractions, but its dtype is {wanted.name}: use a float dtype"
            )
        if name + MASK_SUFFIX in names:
            raise InvalidArgument(f"the field {name + MASK_SUFFIX!r} has the name of the mask of {name!r}: rename it")


def _check_sizes(values: Mapping[str, Any]) -> None:
    batch = values["samples_per_batch"]
    ahead = values["lookahead_samples"] or 2 * batch
    if ahead < batch:
        raise InvalidArgument(
            f"lookahead_samples={ahead} is less than one batch: use at least {batch} (samples_per_batch), or None"
        )
    needed = ahead + batch
    for name in _CACHES:
        if values[name] is not None and values[name] < needed:
            raise InvalidArgument(
                f"{name}={values[name]} cannot hold samples in flight: it needs at least {needed} (lookahead_samples "
                f"{ahead} + samples_per_batch {batch}), or None, which derives it"
            )


def _check_choices(config: Config) -> None:
    skips, timeout = config.on_bad_sample, config.pop_timeout_s
    if skips != "raise":
        whole_number("on_bad_sample", skips, least=0, mend=': samples to skip, or "raise"', error=InvalidArgument)
    try:
        check_transform("transform", "transform(fields, key)", config.transform)
        check_transform("batch_transform", "batch_transform(fields, keys)", config.batch_transform)
    except ConfigError as error:
        raise InvalidArgument(str(error)) from error
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout < math.inf):
        raise InvalidArgument(
            f"pop_timeout_s must be a number of seconds above 0, or None for no time-out; got {timeout!r}"
        )
    if config.remote is not None and not isinstance(config.remote, RemoteOptions):
        raise InvalidArgument(f"remote must be RemoteOptions(...) or None; got {config.remote!r}")
    if config.enable_gds:
        raise InvalidArgument(
            "enable_gds=True needs GPUDirect Storage, which this reader does not support: it reads through the page "
            "cache; remove enable_gds"
        )
    if isinstance(config.device, bool) or (isinstance(config.device, int) and config.device < 0):
        raise InvalidArgument(
            f"device must be the number of a CUDA device, at least 0, or a name; got {config.device!r}"
        )


_LEVELS = (1, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_to_stderr: logging.Handler | None = None


def set_log_level(level: int) -> None:
    """Set the level of the logger ``rankwise.crops``: 0 = trace, 1 = debug, 2 = info, 3 = warnings, 4, 5 = fatal.

    Raises:
        InvalidArgument: the level is not in 0 to 5.
    """
    if not isinstance(level, int) or not 0 <= level < len(_LEVELS):
        raise InvalidArgument(f"a log level must be 0 (everything) to 5 (fatal only), got {level!r}")
    _LOG.setLevel(_LEVELS[level])


def set_log_quiet(quiet: bool = True) -> None:  # noqa: FBT001, FBT002  (the signature that users know)
    """Also write the log to standard error (``False``), or only to the program's own handlers (``True``, initially)."""
    global _to_stderr  # noqa: PLW0603  (there is one standard error)
    if _to_stderr is not None:
        _LOG.removeHandler(_to_stderr)
        _to_stderr = None
    if not quiet:
        _to_stderr = logging.StreamHandler()
        _to_stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _LOG.addHandler(_to_stderr)
