"""`Config`: everything that a stream of crops needs to know beforehand, checked on construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from rankwise.data.crops.config_checks import checked
from rankwise.data.crops.reading.field import Normalise
from rankwise.data.crops.sample import Dtype, DtypeLike
from rankwise.data.crops.tuning import LatencyModel, NumaStrategy
from rankwise.data.feed import BatchTransform, Transform
from rankwise.data.store.boxes import Pad
from rankwise.data.store.remote import RemoteOptions

if TYPE_CHECKING:
    import torch

__all__ = ["Config", "Field"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A further field of every sample, such as a label volume; ``Sample(also={name: Crop(...)})`` says where it lies.

    Attributes:
        sample_shape: extent of one sample of the field, in stored axis order.
        dtype: dtype in the batch; the arrays' own unless given.
        pad: see `Config`.
        normalise: see `Config`.
        mask: see `Config`.
    """

    sample_shape: tuple[int, ...]
    dtype: DtypeLike = Dtype.NATIVE
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How a `Pipeline` of pushed samples makes batches. Make variants with ``dataclasses.replace``.

    Sizes left at None are derived; a size that is too small is refused with the one that is needed. Zero is never a
    default.

    Attributes:
        samples_per_batch: samples of one batch of this rank, at least 1.
        sample_shape: extent of every crop, in stored axis order. A box may have further axes of extent 1.
        max_gpu_memory_bytes: hard cap of the batches on the device (with the CPU as device: in host memory); divided
            when ranks share a GPU. None = no cap but the memory that is there.
        max_host_memory_bytes: hard cap of all that the pipelines of this machine hold in host memory, divided by its
            ranks: batch buffers, scratch, decoded chunks. None = the memory that is there.
        dtype: dtype of the crops: "f32", "bf16", "f16", "f64", integers ("u16", ...), "native" = the arrays' own; see
            `Dtype`. Narrowing to integers is checked value by value.
        field: name of the crops in the batch, ``batch["image"]``.
        fields: further fields of every sample, by name.
        pad: "fill", "edge" or "reflect" stands for voxels outside an array (its fill value, the nearest voxel, the
            mirror image); None refuses boxes that stick out.
        normalise: `Scaling` for all arrays, one per array, or a function of an array's metadata: ``x * scale + offset``
            is computed while the elements are cast.
        mask: make a field ``<name>_mask`` that is true where voxels lie inside their array; None = if `pad` is given.
        drop_last: leave out a last batch with fewer than `samples_per_batch` samples.
        on_bad_sample: "raise", or how many damaged samples may be left out. Only damaged content is ever left out.
        seed: seed of ``batch.key``.
        transform: ``transform(fields, key) -> fields`` of one sample, in NumPy, on the reader thread.
        batch_transform: ``batch_transform(fields, keys) -> fields`` of a batch, on the device, when it is popped.
        cache_bytes: decoded chunks kept in memory, 0 = none.
        lookahead_samples: samples pulled and opened ahead, at least `samples_per_batch`. None = two batches.
        max_chunk_uncompressed_bytes: largest chunk that is accepted, after decoding; a larger one is refused with
            BudgetExceeded. None = any.
        max_read_op_bytes: cap of one request to an object store that joins neighbouring chunks, 1 to 2**32 - 1. Chunks
            of local files are read one by one, straight into the buffer that they are decoded from.
        host_buffer_waves: batch buffers, 2 to 8: those being read, ready, and held by the consumer together. Fewer are
            used where the caps allow no more.
        max_chunks_per_wave: of GPU decoding only.
        max_substreams_per_chunk: of GPU decoding only.
        n_io_threads: threads that read and decode, 1 to 1024; None = the cores that this rank may use.
        metadata_io_concurrency: arrays that are opened at the same time, 1 to 4096.
        n_array_meta_cache: arrays whose metadata are kept.
        n_shard_index_cache: shard indexes kept; None = 64 MiB of them.
        n_chunk_layout_cache: of GPU decoding only.
        max_shards_per_sample: most files that one box may touch. None = any number.
        device: number of a CUDA device, "cpu", "cuda:1" or another device of torch, "numpy" for NumPy arrays; None =
            the world's device (NumPy arrays without torch).
        pop_timeout_s: how long `Pipeline.pop` waits; None = for ever.
        enable_gds: True asks for GPUDirect reads, which are refused: there are none. None and False are the same.
        numa_strategy: where reader threads run.
        numa_node: node for `NumaStrategy.PIN_TO`, else -1.
        remote: how to talk to object stores (endpoint, credentials, timeouts); its `max_read_bytes` then takes the
            place of `max_read_op_bytes`. None = what the environment says.
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
        for name, value in checked(self).items():
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
        """How to talk to object stores."""
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
