"""A world without a process group and without torch: its ranks exchange objects only, over rank 0's small store."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rankwise._process.place import Place
from rankwise.errors import WorldError
from rankwise.world.binding import has_process_store, process_store
from rankwise.world.collectives.channel import KeyChannel
from rankwise.world.rendezvous.addresses import warn_of_public
from rankwise.world.rendezvous.protocol import SECRET_VARIABLE, SignedStore, own_rank_info, rendezvous
from rankwise.world.rendezvous.small_store import SmallStore, lost_store_as_error, open_small_store
from rankwise.world.value import World, make_world

_MEET = timedelta(minutes=10)
_COLLECTIVE = timedelta(days=1)  # long, because the store reports a dead rank, so no timeout is needed for that
_POLL_S = 1.0  # interval of the checks whether the awaited rank is gone


@contextlib.contextmanager
def store_world(place: Place) -> Iterator[World]:
    """Connect the ranks of a launcher without a process group; all ranks enter and leave the context together.

    They meet at MASTER_ADDR and MASTER_PORT, as with `bind`, and the port is free again once all are connected. The
    world supports the collectives of objects (`from_main`, `broadcast_object`, `all_gather_object`, ...), `barrier` and
    `raise_together`. If a rank ends without leaving, the others notice within a second.

    Args:
        place: this process's place; the world size is more than 1.

    Yields:
        The world.

    Raises:
        WorldError: the place has no address, a rank is missing, or the ranks have different versions of rankwise.
    """
    if not (place.master_addr and place.master_port):
        raise WorldError(
            f"rank {place.rank} of {place.world_size} does not know where the ranks meet: set MASTER_ADDR and "
            "MASTER_PORT (`rankwise run`, torchrun, srun and mpirun do), or create a process group first"
        )
    own_store = not (place.agent_store or has_process_store(place))  # else torch's store already uses this address
    if own_store and place.rank == 0:
        warn_of_public(place.master_addr, "the store of the ranks")
    store: Any = open_small_store(place, _MEET) if own_store else process_store(place, _MEET)
    try:
        world = _connected_world(store, place)
        try:
            yield world
        finally:
            # the rank with the store ends last: whatever was sent before this barrier has been read
            with contextlib.suppress(WorldError):
                world.barrier()
    finally:
        if own_store:
            store.close()


def _connected_world(store: Any, place: Place) -> World:
    secret = os.environ.get(SECRET_VARIABLE, "")
    with lost_store_as_error(place):
        layout = rendezvous(store, own_rank_info(place), timeout=_MEET, secret=secret)
        keys = StoreKeys(store, layout.prefix, secret)
        if isinstance(store, SmallStore):
            store.stop_listening()  # all are connected: release the port for a process group or the next meeting
            store.set_at_disconnect(keys.gone(place.rank))
    channel = KeyChannel(keys, f"{layout.prefix}/talk", place.rank, place.world_size, _COLLECTIVE)
    return make_world(place, layout, channel, device="cpu", backend="store", threads=1)


class StoreKeys:
    """A store with the client interface of `KeyChannel`: authenticated messages, and an error if a sender is gone.

    Args:
        store: a torch store or a `SmallStore`.
        prefix: prefix of all keys of this meeting.
        secret: the job's secret.
    """

    def __init__(self, store: Any, prefix: str, secret: str) -> None:
        self._store, self._prefix, self._signed = store, prefix, SignedStore(store, secret)
        self._reports_disconnects = isinstance(store, SmallStore)

    def gone(self, rank: int | str) -> str:
        """Return the key that the store writes when the rank's connection ends."""
        return f"{self._prefix}/gone/{rank}"

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        """Write a message under a key.

        Raises:
            RuntimeError: the store is gone.
        """
        with _lost_store_as_runtime_error():
            self._signed.put(key, base64.b64encode(value).decode())

    def blocking_key_value_get_bytes(self, key: str, patience_ms: int) -> bytes:
        """Return the message under a key; the key ends with the sender's rank.

        Raises:
            RuntimeError: it did not arrive in time, its sender or the store is gone, or its HMAC is wrong.
        """
        with _lost_store_as_runtime_error():
            self._await(key, patience_ms / 1000)
            return self._verified(key, self._store.get(key))

    def key_value_dir_get_bytes(self, folder: str) -> list[tuple[str, bytes]]:
        """Return the messages under a folder of keys that are there, with their keys; none from a store of torch's.

        Raises:
            RuntimeError: the store is gone, or one is a stranger's.
        """
        if not isinstance(self._store, SmallStore):
            return []  # it cannot list its keys
        with _lost_store_as_runtime_error():
            return [(key, self._verified(key, value)) for key, value in self._store.under(folder)]

    def _verified(self, key: str, value: bytes) -> bytes:
        text = self._signed.verified(key, value)
        if text is None:
            raise RuntimeError(f"the message {key} is from another job: it has another {SECRET_VARIABLE}")
        return base64.b64decode(text)

    def _await(self, key: str, patience_s: float) -> None:
        rank, deadline, is_gone = key.rpartition("/")[2], time.monotonic() + patience_s, False
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                self._store.wait(
                    [key], timedelta(seconds=min(left_s, _POLL_S) if self._reports_disconnects else left_s)
                )
            except ConnectionError:
                raise
            except Exception:
                if not self._reports_disconnects:
                    raise  # torch's RuntimeError
                if is_gone:
                    raise RuntimeError(f"rank {rank} has ended without a message") from None
                if time.monotonic() >= deadline:
                    raise RuntimeError(f"timed out: rank {rank} has sent nothing for {patience_s:g} s") from None
                # wait once more: messages sent just before its end have arrived by now
                is_gone = self._store.check([self.gone(rank)])
                continue
            return

    def key_value_delete(self, key: str) -> None:
        """Delete a message that all ranks have read.

        Raises:
            RuntimeError: the store is gone.
        """
        with _lost_store_as_runtime_error():
            self._store.delete_key(key)


@contextlib.contextmanager
def _lost_store_as_runtime_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"the store of rank 0 is gone: {error}") from error
