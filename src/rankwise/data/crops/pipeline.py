"""`Pipeline`: one name for both ways to batches of crops, pushed samples and an index with an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from rankwise.data.contract import Order
from rankwise.data.crops.config import Config
from rankwise.errors import ConfigError

__all__ = ["Pipeline"]


class Pipeline(ABC):
    """Batches of crops, of pushed samples or of an index.

    ``Pipeline(Config(...))`` takes samples that are pushed, in their order: a `StreamPipeline`.
    ``Pipeline(index, order=Order(index, batch_size=...))`` takes the crops of an index as the order says, shuffled,
    shared among the ranks, resumable: an `IndexPipeline`, which describes its arguments. Both are context managers, and
    instances of this class.

    Raises:
        ConfigError: neither a `Config` alone nor an index with an order was given.
    """

    def __new__(cls, source: Any = None, *args: Any, **options: Any) -> Any:
        """Choose the kind of pipeline."""
        if cls is not Pipeline:
            return super().__new__(cls)
        if isinstance(source, Config):
            from rankwise.data.crops.stream.pipeline import StreamPipeline

            _refuse_beside_config(source, args, options)
            return super().__new__(StreamPipeline)
        from rankwise.data.crops.index.pipeline import IndexPipeline

        _refuse_beside_index(source, options)
        return IndexPipeline(source, *args, **options)

    @abstractmethod
    def close(self) -> None:
        """Stop reading and give threads and memory back; what was handed out stays valid. Calling it twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _refuse_beside_config(config: Config, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    if "order" in options:
        raise ConfigError(_two_batch_sizes(config.samples_per_batch, options["order"]))
    if args or options:
        listing = ", ".join([*map(repr, args), *options])
        raise ConfigError(f"a pipeline of pushed samples takes all its settings from the Config, got also {listing}")


def _refuse_beside_index(source: Any, options: dict[str, Any]) -> None:
    from rankwise.data.crops.index.crop_index import CropIndex

    if not isinstance(source, CropIndex):
        raise ConfigError(
            f"a pipeline wants a Config, for samples that are pushed, or a CropIndex with order=; got {source!r}. The "
            "crops of stored arrays are CropIndex(URIs, shape=...)"
        )
    if "samples_per_batch" in options and "order" in options:
        raise ConfigError(_two_batch_sizes(options["samples_per_batch"], options["order"]))
    if "order" not in options:
        raise ConfigError(
            "a pipeline over a CropIndex wants order=Order(index, batch_size=...), where batch_size counts the crops "
            "of all ranks together"
        )


def _two_batch_sizes(samples_per_batch: int, order: Any) -> str:
    """Why both cannot be given: they count differently."""
    from rankwise.world import World

    ranks = World.current().world_size
    whole = f"on {ranks} rank{'s' * (ranks > 1)} {samples_per_batch * ranks} per step"
    asked = f"that is {order.batch_size if isinstance(order, Order) else 'its own'} per step on any number of ranks"
    return (
        f"samples_per_batch={samples_per_batch} counts the crops of one rank ({whole}), the batch size of order= those "
        f"of all ranks ({asked}): give one of them. With an order it is Pipeline(index, order=Order(index, "
        "batch_size=...), micro_batch=...), where micro_batch= caps the crops of one rank in one pass"
    )
