"""`Pipeline`: one name for both ways to batches of crops, pushed samples and an index with an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from rankwise.data.crops.config import Config

__all__ = ["Pipeline"]


class Pipeline(ABC):
    """Batches of crops, of pushed samples or of an index.

    ``Pipeline(Config(...))`` takes samples that are pushed, in their order: a `StreamPipeline`.
    ``Pipeline(index, order=Order(index, batch_size=...))`` takes the crops of an index as the order says, shuffled,
    shared among the ranks, resumable: an `IndexPipeline`. Both are context managers, and instances of this class.
    """

    def __new__(cls, source: Any = None, *args: Any, **options: Any) -> Any:
        """Choose the kind of pipeline."""
        if cls is not Pipeline:
            return super().__new__(cls)
        if isinstance(source, Config):
            from rankwise.data.crops.stream.pipeline import StreamPipeline

            return super().__new__(StreamPipeline)
        from rankwise.data.crops.index.pipeline import IndexPipeline

        return IndexPipeline(source, *args, **options)

    @abstractmethod
    def close(self) -> None:
        """Stop reading and give threads and memory back; what was handed out stays valid. Calling it twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
