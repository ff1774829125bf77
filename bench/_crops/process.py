"""A process for one reader: it reads rounds of batches on request and returns their cost."""

from __future__ import annotations

import sys
import zlib
from typing import Any

from _common.worker import Worker, serve, timed

from _crops.readers import ENVIRONMENT, Reader, open_reader
from _crops.task import Task


class ReaderProcess(Worker):
    """Starts the process of one reader; a context manager."""

    def __init__(self, name: str, task: Task) -> None:
        self.name = name
        super().__init__(name, "_crops.process", name, task.to_json(), environment=ENVIRONMENT.get(name))

    def round(self, first: int, count: int, *, digest: bool = False) -> dict[str, Any]:
        """Read batches ``first .. first + count - 1``; return CPU and wall seconds, or their digest."""
        return self.ask(first=first, count=count, digest=digest)


def main(name: str, task: Task) -> None:
    """Read what is asked for until nothing more is."""
    reader = open_reader(name, task)

    def answer(*, first: int, count: int, digest: bool) -> dict[str, Any]:
        numbers = range(first, first + count)
        reader.prepare(numbers)
        return checksums(reader, numbers) if digest else timed(reader.batches(numbers), reader.children)

    serve(answer)
    reader.close()


def checksums(reader: Reader, numbers: range) -> dict[str, list[int]]:
    """Checksums of batches, for comparing readers."""
    return {"digest": [zlib.crc32(batch.tobytes()) for batch in reader.batches(numbers)]}


if __name__ == "__main__":
    main(sys.argv[1], Task.from_json(sys.argv[2]))
