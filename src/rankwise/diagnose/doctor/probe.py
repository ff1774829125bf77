"""One rank of a probe, in its own process: `python -m rankwise.diagnose.doctor.probe RANK RANKS PORT SECONDS`.

It prints each stage that it has reached as a line of JSON, so that the parent knows where it is stuck.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any


def main(argv: list[str]) -> None:
    """Join the others over loopback with gloo, check collectives, measure."""
    rank, ranks, port, seconds = (int(word) for word in argv)
    import torch
    import torch.distributed as dist

    _emit("torch", version=torch.__version__)
    torch.set_num_threads(1)
    limit = timedelta(seconds=seconds)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, ranks, is_master=rank == 0, wait_for_workers=False, timeout=limit
    )
    _emit("store", port=store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    _emit("group")
    from rankwise.diagnose.doctor.collectives import check_patterns, sweep

    _emit("collectives", wrong=check_patterns())
    _emit("sweep", rows=sweep())
    sys.stdout.flush()
    os._exit(0)  # a broken group must not block the exit


def _emit(stage: str, **more: Any) -> None:
    print(json.dumps({"stage": stage, **more}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
