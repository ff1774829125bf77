"""Several ranks that write one collection: who they are, and who takes which task."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._files import write_whole
from rankwise._process.place import Place
from rankwise.errors import DesyncError, RankwiseError, WorldError

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["Crew", "Seat", "failed_by_itself", "put_json", "take_seat"]

# What tells one launch, and one attempt of it, from another.
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "OMPI_MCA_ess_base_jobid",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One process of those that write together.

    Attributes:
        rank: its rank.
        size: number of ranks.
        launch: the same for all of them, and for no others that are alive.
    """

    rank: int = 0
    size: int = 1
    launch: str = "alone"


def take_seat(world: World | Place | None) -> Seat:
    """Find who writes together.

    Args:
        world: the ranks; a place is enough where they have no process group. None = those of the process group that
            this process is in, else this process alone.
    """
    if world is None:
        world = _joined_world()
    if world is None or world.world_size == 1:
        return Seat()
    channel: Any = None if isinstance(world, Place) else world.channel
    if channel is None:
        words = [os.environ.get(name, "") for name in _LAUNCH]
        launch = hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()
    else:
        from rankwise.world.objects import broadcast_object

        launch = broadcast_object(world, secrets.token_hex(8), 0)  # type: ignore[arg-type]
    return Seat(rank=world.rank, size=world.world_size, launch=launch)


def _joined_world() -> World | None:
    """Return the world of the process group, without importing torch to find that there is none."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    from rankwise.world.adopt import current_world

    return current_world()


_MEET_S = 600.0
_LOOK_S = 2.0  # between two looks at whether the others live
_PAUSES_S = (0.005, 0.2)  # shortest and longest pause between two looks for a file
_SESSION = "session-"


class Crew:
    """The processes that write together.

    Args:
        seat: this one.
        work: folder that all of them see.
    """

    def __init__(self, seat: Seat, work: Path) -> None:
        self.rank, self.size, self._launch = seat.rank, seat.size, seat.launch
        self.folder = work / f"{_SESSION}{seat.launch}"
        self._token, self._looked_s = secrets.token_hex(8), time.monotonic()
        self._peers: dict[int, dict[str, Any]] = {}
        self._met = False

    @property
    def is_main(self) -> bool:
        """Whether this is the process that decides and publishes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    @contextlib.contextmanager
    def together(self, held: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Begin together and end together: an error of one process ends all.

        Args:
            held: keeps other crews out; entered by the main process only.

        Raises:
            DesyncError: another process failed, or is gone.
            WorldError: a process did not come.
        """
        if self.alone:
            with held:
                yield
            return
        try:
            with held if self.is_main else contextlib.nullcontext():
                self._meet()
                yield
                self._part()
        except BaseException as error:
            if self.is_main or not isinstance(error, DesyncError):
                self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Say what ended this process; the main one always does, as it may have deleted what others had said."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            itself = failed_by_itself(self.folder.parent, error)
            words = {"error": f"{type(error).__name__}: {error}", "met": self._met, "by_itself": itself}
            put_json(self.folder / f"failed-{self.rank}", words)

    def agree(self, name: str, make: Callable[[], Any]) -> Any:
        """Let the main process make something (JSON) and give it to all."""
        if self.alone:
            return make()
        path = self.folder / name
        if self.is_main:
            put_json(path, make())
        self.wait_for(path.exists, name)
        return json.loads(path.read_bytes())

    def gather(self, name: str) -> None:
        """Wait until all have come here.

        Raises:
            DesyncError: another process failed, or is gone.
        """
        if self.alone:
            return
        put_json(self.folder / f"{name}-{self.rank}", {})
        places = [self.folder / f"{name}-{rank}" for rank in range(self.size)]
        self.wait_for(lambda: all(place.exists() for place in places), f"all ranks at {name!r}")

    def wait_for(self, true: Callable[[], bool], what: str, *, most_s: float | None = None) -> None:
        """Wait until something is true, as long as the others live.

        Raises:
            DesyncError: another process failed, or is gone.
            WorldError: it took too long.
        """
        begun_s, pause_s = time.monotonic(), _PAUSES_S[0]
        while not true():
            self.check()
            if most_s is not None and time.monotonic() - begun_s > most_s:
                raise WorldError(f"rank {self.rank} of {self.size} waited {most_s:g} s for {what}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSES_S[1])

    def check(self) -> None:
        """Look at whether the others are well.

        Raises:
            DesyncError: one has failed, or is gone.
        """
        if self.alone:
            return
        for path in self.folder.glob("failed-*"):
            rank = int(path.name.removeprefix("failed-"))
            with contextlib.suppress(FileNotFoundError):  # the main process has just cleared the folder
                told = _read(path)
                if rank != self.rank and self._concerns_us(rank, told):
                    raise DesyncError(f"rank {rank} failed: {told['error']}", ranks=(rank,))
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._looked_s = time.monotonic()
            gone = tuple(rank for rank, peer in self._peers.items() if self._is_gone(rank, peer))
            if gone:
                raise DesyncError(f"rank {gone[0]} is gone without a word; its own output may say why", ranks=gone)

    def _concerns_us(self, rank: int, told: dict[str, Any]) -> bool:
        """Whether a failure is of this crew: until rank 0 has begun, others may find what an earlier one has left."""
        return self._met or self.is_main or (rank == 0 and not told["met"])

    def _meet(self) -> None:
        """Find each other; what earlier processes of the same launch have left is not taken for the others."""
        if self.is_main:
            for path in self.folder.parent.glob(f"{_SESSION}*"):
                shutil.rmtree(path, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [self.folder / f"hello-{rank}" for rank in range(1, self.size)]
            self.wait_for(
                lambda: all(path.exists() for path in others),
                f"ranks 1 to {self.size - 1}: every rank must write, or world=World.single() on one of them",
                most_s=_MEET_S,
            )
            cards = {0: self._card()} | {rank: _read(self.folder / f"hello-{rank}") for rank in range(1, self.size)}
            put_json(self.folder / "begin", cards)
        else:
            self.wait_for(self._admitted, "rank 0", most_s=_MEET_S)
        self._met = True
        self._peers = {int(rank): card for rank, card in _read(self.folder / "begin").items()}
        del self._peers[self.rank]

    def _admitted(self) -> bool:
        hello, begin = self.folder / f"hello-{self.rank}", self.folder / "begin"
        try:
            if begin.exists() and _read(begin)[str(self.rank)]["token"] == self._token:
                return True
            if not hello.exists() or _read(hello)["token"] != self._token:
                hello.parent.mkdir(parents=True, exist_ok=True)
                put_json(hello, self._card())
        except (OSError, KeyError):  # the main process has just cleared the folder, or the size was another one
            pass
        return False

    def _part(self) -> None:
        """Leave; the main process leaves last, as it deletes the folder."""
        if self.is_main:
            put_json(self.folder / "end", {})
            left = [self.folder / f"bye-{rank}" for rank in range(1, self.size)]
            with contextlib.suppress(DesyncError):  # all is written: it does not matter how the others ended
                self.wait_for(lambda: all(path.exists() for path in left), "the others", most_s=_MEET_S)
        else:
            self.wait_for((self.folder / "end").exists, "rank 0")
            put_json(self.folder / f"bye-{self.rank}", {})

    def _card(self) -> dict[str, Any]:
        return {"token": self._token, "host": _host(), "pid": os.getpid()}

    def _is_gone(self, rank: int, peer: dict[str, Any]) -> bool:
        """Whether a process of this machine is gone; of others their launcher knows."""
        if peer["host"] != _host() or (self.folder / f"bye-{rank}").exists():
            return False
        try:
            os.kill(peer["pid"], 0)
        except ProcessLookupError:
            return not (self.folder / f"bye-{rank}").exists() and not (self.folder / "end").exists()
        except PermissionError:
            pass
        return False


def failed_by_itself(work: Path, error: BaseException) -> bool:
    """Whether a writing ends because its inputs cannot be read or do not fit, here or on another rank.

    Args:
        work: the work folder, where other ranks say what ended them.
        error: what ends this one.
    """
    if isinstance(error, DesyncError):
        return any(_read(path).get("by_itself", False) for path in work.glob(f"{_SESSION}*/failed-*"))
    return isinstance(error, RankwiseError) and not isinstance(error, WorldError)


def put_json(path: Path, facts: Any) -> None:
    """Write a file that others see whole or not at all."""
    write_whole(path, json.dumps(facts).encode(), durable=False)


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _host() -> str:
    """Containers of one machine may share all names, but processes are counted in a namespace."""
    from rankwise.world.factory import host_id

    space = Path("/proc/self/ns/pid")
    return f"{host_id()}/{space.readlink() if space.is_symlink() else ''}"
