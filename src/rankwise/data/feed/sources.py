"""The samples that a loader reads: as its order counts them, some of their fields, with a transform that they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rankwise.data.contract import Order, Source
from rankwise.errors import ConfigError

__all__ = ["BatchTransform", "counted_samples", "fused_source", "selected_source"]

BatchTransform: TypeAlias = Callable[[dict[str, Any], Any], Mapping[str, Any]]


def counted_samples(source: Source, order: Order) -> Source:
    """Return the samples that the order counts: a source that can draw does so as the order says.

    Raises:
        ConfigError: this is no source, or the order was made of other samples.
    """
    if not hasattr(source, "plan"):
        raise ConfigError(
            f"a loader wants a source of samples, such as an ArraySource or a RowSource, got {type(source).__name__}"
        )
    bound_to = getattr(source, "bound_to", None)
    bound: Source = source if bound_to is None else bound_to(order)
    return bound


def fused_source(source: Source, batch_transform: BatchTransform | None) -> tuple[Source, BatchTransform | None]:
    """Return a source that does itself what was to be done to its batches, where it can; and what is left to do."""
    fused_with = getattr(source, "fused_with", None)
    fused: Source | None = None if fused_with is None or batch_transform is None else fused_with(batch_transform)
    return (source, batch_transform) if fused is None else (fused, None)


def selected_source(source: Source, fields: Sequence[str]) -> Source:
    """Return a source of some of the fields.

    Raises:
        ConfigError: there are no such fields, or it cannot choose.
    """
    select = getattr(source, "select", None)
    if select is None:
        raise ConfigError(f"fields= needs a source that can select fields; {type(source).__name__} cannot")
    chosen: Source = select(fields)
    return chosen
