"""`SampleLoader`: a source and an order to batches, on this rank and its device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankwise.data.contract import Order, Source
from rankwise.data.feed import BatchTransform, FeedLoader, OnBadSample, Transform
from rankwise.data.feed.advice import warn_small_cache
from rankwise.data.feed.rank_place import find_place

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World

__all__ = ["SampleLoader"]


class SampleLoader(FeedLoader):
    """A `FeedLoader` that takes rank, world size and device from the world.

    Args:
        source: samples by index, such as an `ArraySource`.
        order: which samples form which step; its batch size is that of all ranks together.
        micro_batch: most samples of this rank in one batch; None = its whole share at once.
        device: "auto" = the world's device, any torch device, or None for NumPy arrays; ``"jax"`` or a
            ``jax.sharding.Sharding`` as `FeedLoader` says.
        world: the world; None = `World.current()`.
        depth: steps that may lie ready; 0 reads in the calling thread.
        transform: ``transform(fields, key) -> fields`` for one sample, on the reader thread.
        batch_transform: ``batch_transform(fields, keys) -> fields`` for a whole batch, on the device.
        fields: the fields to read; None = all.
        on_bad_sample: "raise", or how many damaged samples this rank may leave out; see `FeedLoader`.

    Raises:
        ConfigError: an argument is out of range, or there is no such field.
        MissingExtraError: torch is needed and not installed.
    """

    def __init__(
        self,
        source: Source,
        *,
        order: Order,
        micro_batch: int | None = None,
        device: str | torch.device | jax.sharding.Sharding | None = "auto",
        world: World | None = None,
        depth: int = 2,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        fields: Sequence[str] | None = None,
        on_bad_sample: OnBadSample = "raise",
    ) -> None:
        place = find_place(world, device)
        warn_small_cache(source, order, rank=place.rank, world_size=place.world_size)
        super().__init__(
            source,
            order,
            rank=place.rank,
            world_size=place.world_size,
            micro_batch=micro_batch,
            device=place.device,
            depth=depth,
            transform=transform,
            batch_transform=batch_transform,
            fields=fields,
            on_bad_sample=on_bad_sample,
        )
