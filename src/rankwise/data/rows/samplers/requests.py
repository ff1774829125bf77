"""The load requests of a pass, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankwise.data.rows.passes import RequestSizes
from rankwise.data.rows.types import LoadRequest
from rankwise.world.loader_worker import current_worker

__all__ = ["make_requests"]


def make_requests(total: int, sizes: RequestSizes, make: Callable[[int, int], LoadRequest]) -> Iterator[LoadRequest]:
    """Yield the load requests of a pass that hands out `total` rows; a worker of a DataLoader yields its own only.

    Whatever the number of workers, together they yield the same requests: each is made from its number alone.

    Args:
        total: rows of the pass.
        sizes: how many rows go together.
        make: from the number of a request, and the rows that it is to hand out, to the request.
    """
    worker = current_worker()
    for number in range(-(-total // sizes.request_rows)):
        if worker is None or worker.owns(number):
            yield make(number, min(sizes.request_rows, total - number * sizes.request_rows))
