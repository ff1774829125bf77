"""`FeedOptions`: what any loader of a rank takes, whatever it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from rankwise.data.feed.skipping import OnBadSample
    from rankwise.data.feed.sources import BatchTransform
    from rankwise.data.feed.transform import Transform

__all__ = ["FeedOptions"]


class FeedOptions(TypedDict, total=False):
    """Arguments that go as they are to `FeedLoader`, which says what each means."""

    transform: Transform | None
    batch_transform: BatchTransform | None
    fields: Sequence[str] | None
    on_bad_sample: OnBadSample
    across_epochs: bool | None
