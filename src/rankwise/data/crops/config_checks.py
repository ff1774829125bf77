"""Is a configuration possible? Every refusal says what was wanted, what came, and what would do."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.reading.field import MASK_SUFFIX, check_normalise
from rankwise.data.crops.sample import Dtype, parse_dtype
from rankwise.data.crops.tuning import chosen_strategy
from rankwise.data.store.remote import RemoteOptions
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.data.crops.config import Config

__all__ = ["checked"]

_MOST = 2**32 - 1
_RANGES: Mapping[str, tuple[int, int | None]] = {
    "samples_per_batch": (1, None),
    "max_gpu_memory_bytes": (1, None),
    "max_host_memory_bytes": (1, None),
    "cache_bytes": (0, None),
    "lookahead_samples": (1, None),
    "max_chunk_uncompressed_bytes": (1, _MOST),
    "max_read_op_bytes": (1, _MOST),
    "host_buffer_waves": (2, 8),
    "max_chunks_per_wave": (1, 65535),
    "max_substreams_per_chunk": (1, 65535),
    "n_io_threads": (1, 1024),
    "metadata_io_concurrency": (1, 4096),
    "n_array_meta_cache": (1, None),
    "n_shard_index_cache": (1, None),
    "n_chunk_layout_cache": (1, None),
    "max_shards_per_sample": (1, None),
    "numa_node": (-1, None),
}
_OPTIONAL = {
    "max_gpu_memory_bytes", "max_host_memory_bytes", "lookahead_samples", "max_chunk_uncompressed_bytes",
    "n_io_threads", "n_array_meta_cache", "n_shard_index_cache", "n_chunk_layout_cache", "max_shards_per_sample",
}  # fmt: skip
_CACHES = ("n_array_meta_cache", "n_shard_index_cache", "n_chunk_layout_cache")


def checked(config: Config) -> dict[str, Any]:
    """Return the values of a configuration in canonical form.

    Raises:
        InvalidArgument: one is of another type or out of range, or two contradict each other.
    """
    values: dict[str, Any] = {name: _whole(config, name) for name in _RANGES}
    values["sample_shape"] = _shape(config.sample_shape, "sample_shape")
    values["dtype"] = parse_dtype(config.dtype)
    values["fields"] = dict(config.fields)
    values["numa_strategy"], values["numa_node"] = chosen_strategy(config.numa_strategy, values["numa_node"])
    values["on_bad_sample"] = _budget(config.on_bad_sample)
    _check_fields(config, values["dtype"])
    _check_sizes(values)
    _check_timeout(config.pop_timeout_s)
    _check_places(config)
    return values


def _whole(config: Config, name: str) -> int | None:
    value = getattr(config, name)
    if value is None and name in _OPTIONAL:
        return None
    low, high = _RANGES[name]
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is a whole number, got {type(value).__name__} {value!r}") from None
    if number < low or (high is not None and number > high):
        span = f"at least {low}" if high is None else f"{low} to {high}"
        derived = "; None derives it" if name in _OPTIONAL else ""
        raise InvalidArgument(f"{name} is {span}{derived}; got {number}")
    return number


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise InvalidArgument(f"{what} is a tuple of whole numbers, got {shape!r}") from None
    if not 1 <= len(extents) <= 31 or any(extent < 1 for extent in extents):
        raise InvalidArgument(f"{what} has 1 to 31 extents, all at least 1; got {list(extents)}")
    return extents


def _budget(given: Any) -> Any:
    if given == "raise":
        return given
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise InvalidArgument(f'on_bad_sample is "raise" or how many samples may be left out, at least 0; got {given!r}')


def _check_fields(config: Config, dtype: Dtype) -> None:
    names = [config.field, *config.fields]
    if config.field in config.fields:
        raise InvalidArgument(f"the field {config.field!r} is that of the crops themselves (field=): rename one")
    for name, each in config.all_fields.items():
        _shape(each.sample_shape, f"sample_shape of field {name!r}")
        wanted = dtype if name == config.field else parse_dtype(each.dtype)
        if each.pad not in (None, "fill", "edge", "reflect"):
            raise InvalidArgument(f'pad of field {name!r} is "fill", "edge", "reflect" or None; got {each.pad!r}')
        try:
            check_normalise(each.normalise)
        except ConfigError as error:
            raise InvalidArgument(f"field {name!r}: {error}") from error
        floats = (Dtype.F32, Dtype.F64, Dtype.F16, Dtype.BF16)
        if each.normalise is not None and wanted not in floats:
            raise InvalidArgument(
                f"normalise of field {name!r} makes fractions, its dtype is {wanted.name}: take a float dtype"
            )
        if name + MASK_SUFFIX in names:
            raise InvalidArgument(f"the field {name + MASK_SUFFIX!r} has the name of the mask of {name!r}: rename it")


def _check_sizes(values: Mapping[str, Any]) -> None:
    batch = values["samples_per_batch"]
    ahead = values["lookahead_samples"] or 2 * batch
    if ahead < batch:
        raise InvalidArgument(
            f"lookahead_samples={ahead} is less than one batch: give at least {batch} (samples_per_batch), or None"
        )
    needed = ahead + batch
    for name in _CACHES:
        if values[name] is not None and values[name] < needed:
            raise InvalidArgument(
                f"{name}={values[name]} cannot hold what is in flight: it needs at least {needed} (lookahead_samples "
                f"{ahead} + samples_per_batch {batch}), or None, which derives it"
            )


def _check_timeout(timeout: Any) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise InvalidArgument(
            f"pop_timeout_s is a number of seconds above 0, or None to wait for ever; got {timeout!r}"
        )


def _check_places(config: Config) -> None:
    if config.remote is not None and not isinstance(config.remote, RemoteOptions):
        raise InvalidArgument(f"remote is RemoteOptions(...) or None; got {config.remote!r}")
    if config.enable_gds:
        raise InvalidArgument(
            "enable_gds=True asks for GPUDirect Storage, which this reader does not have: it reads through the page "
            "cache; leave it out"
        )
    if isinstance(config.device, bool) or (isinstance(config.device, int) and config.device < 0):
        raise InvalidArgument(f"device is the number of a CUDA device, at least 0, or a name; got {config.device!r}")
