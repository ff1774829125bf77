"""One rank of a `run_ranks` pool: joins the group, then executes received calls until its parent ends."""

from __future__ import annotations

import datetime as dt
import faulthandler
import os
import pickle
import signal
import traceback
from multiprocessing import connection
from pathlib import Path


def _join(rank: int, num_ranks: int, root: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(root / "store"), num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=200))


def main() -> None:
    """Serve calls until the socket closes; then exit at once, without waiting for peers."""
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    rank, num_ranks, folder = os.environ["RANKWISE_TEST_RANK"].split(":", 2)
    link = connection.Client(str(Path(folder) / "socket"), family="AF_UNIX")
    link.send(int(rank))
    _join(int(rank), int(num_ranks), Path(folder))
    from rankwise.world import World

    while True:
        try:
            fn, args = pickle.loads(link.recv_bytes())  # noqa: S301  (sent by the test itself)
        except EOFError:
            os._exit(0)
        try:
            answer = (True, fn(World.current(), *args))
        except BaseException:  # noqa: BLE001  (reported to the caller, whatever it is)
            answer = (False, traceback.format_exc())
        try:
            payload = pickle.dumps(answer)
        except Exception:  # noqa: BLE001
            payload = pickle.dumps((False, traceback.format_exc()))
        link.send_bytes(payload)


if __name__ == "__main__":
    main()
