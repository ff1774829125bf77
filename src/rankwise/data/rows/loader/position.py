"""`LoaderPosition`: the position of a loader inside its passes, for saving and resuming."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeVar

from rankwise._process.loader_worker import current_worker
from rankwise._process.place import speaking_rank
from rankwise.data.contract import JSON, whole_number
from rankwise.data.rows.abc import PassDraws, Sampler
from rankwise.data.rows.loader.datasets import AddedDatasets
from rankwise.data.rows.loader.requests import RowOrder, order_rows
from rankwise.data.rows.notices import warn_once
from rankwise.data.rows.samplers import DistributedSampler
from rankwise.data.rows.samplers.distributed import known_settings
from rankwise.errors import ConfigError

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPass:
    """The position of a loader: after the first batches of a pass."""

    epoch: int
    batches: int  # number of batches handed out
    seed: int | None  # of the sampler; None = it has no generator
    rank: int
    sampler: Mapping[str, JSON] | None  # settings of the sampler; None = they are unknown
    rows: int
    data: str  # hash of its matrices' metadata
    # for a `DataLoader` worker its `number`, the `count` of all, and the `salt` of the pass; else None
    worker: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        made: dict[str, JSON] = json.loads(json.dumps({"version": _VERSION, **asdict(self)}))
        return made

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Return the position that `to_json` wrote.

        Raises:
            ConfigError: `state` is not such a position.
        """
        wanted = {"version", *cls.__dataclass_fields__}
        if set(state) != wanted:
            hint = ": it is the position of a loader with order=" if "recipe" in state else ""
            raise ConfigError(
                f"the state of a loader with a sampler has {', '.join(sorted(wanted))}; got {', '.join(sorted(state))}"
                f"{hint}"
            )
        if state["version"] != _VERSION:
            raise ConfigError(f"the state has version {state['version']!r}; this rankwise reads version {_VERSION}")
        for name in ("epoch", "batches", "rows", "rank"):
            whole_number(f"{name} in the state of a loader", state[name], least=0)
        return cls(**{name: value for name, value in state.items() if name != "version"})

    def differences(self, here: SavedPass) -> list[str]:
        """Return the differences in data, sampler and workers, in words."""
        told: list[dict[str, Any]] = []
        for saved in (self, here):
            settings: Any = saved.to_json()["sampler"] or {}  # as JSON: tuples are lists
            worker = {} if saved.worker is None else {"worker": "{number} of {count}".format(**saved.worker)}
            told.append({"rows": saved.rows, "data": saved.data, **settings, **worker})
        was, now = told
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        return [f"{name} was {was.get(name)}, is {now.get(name)}" for name in names]


WITH_AN_ORDER = (
    "pass order=Order(collection, batch_size=...) instead of a sampler: its position works at any number of ranks"
)
T = TypeVar("T")


class CurrentPass:
    """One pass; it resumes from `saved` if that position lies in it.

    Attributes:
        draws: the random source of the pass; None = it has not begun.
        num_done: batches handed out, including those before the saved position.
        has_ended: whether all batches were handed out.
    """

    def __init__(self, sampler: Sampler, saved: SavedPass | None) -> None:
        self._sampler, self._saved = sampler, saved
        self.draws: PassDraws | None = None
        self.num_done = 0
        self.has_ended = False

    def orders(self, n_obs: int) -> Generator[RowOrder, None, None]:
        """Yield the rows to read, request by request; batches before the saved position are drawn, but not read.

        Raises:
            ConfigError: a request is invalid, or the saved position does not belong to this pass.
        """
        with closing(self._sampler.sample(n_obs)) as requests:
            request = next(requests, None)
            self.draws, saved = self._sampler.last_pass, self._saved
            if saved is not None and (self.draws is None or saved.epoch != self.draws.epoch):
                saved = None  # it lies in another pass
            if saved is not None and saved.worker is None and current_worker() is not None:
                raise ConfigError(
                    "a loader that resumes inside an epoch cannot be shared among DataLoader workers: use "
                    f"num_workers=0 (it reads in the background anyway), or {WITH_AN_ORDER}"
                )
            num_left_out = self.num_done = 0 if saved is None else saved.batches
            while request is not None:
                splits = list(request["splits"])
                if len(splits) > num_left_out:
                    yield order_rows({"requests": request["requests"], "splits": splits[num_left_out:]}, n_obs)
                num_left_out -= min(num_left_out, len(splits))
                request = next(requests, None)
        if num_left_out:
            raise ConfigError(f"the saved state is {num_left_out} batches beyond the end of its pass")

    def counted(self, batch: T) -> T:
        """Count a batch that is handed out, and return it."""
        self.num_done += 1
        return batch


class LoaderPosition:
    """The position of a loader: its pass, and the number of batches done."""

    def __init__(self, sampler: Sampler, datasets: AddedDatasets) -> None:
        self._sampler, self._datasets = sampler, datasets
        self._newest: CurrentPass | None = None
        self._loaded: SavedPass | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_newest": None}

    def next_pass(self) -> CurrentPass:
        """Return the pass that begins now; it resumes from the loaded position if that has the same epoch."""
        self._newest, self._loaded = CurrentPass(self._sampler, self._loaded), None
        return self._newest

    def first_order(self, sampler: Sampler) -> RowOrder | None:
        """Return the first rows of the pass that would begin now, drawn by a copy of the sampler; None = no rows."""
        with closing(CurrentPass(sampler, self._loaded).orders(self._datasets.num_rows)) as orders:
            return next(orders, None)

    def state_dict(self) -> dict[str, JSON]:
        """Return the position after the last batch that was handed out.

        Raises:
            ConfigError: workers of a `DataLoader` read, and only they know the position; or there are no rows.
        """
        if current_worker() is None and self._sampler.passed_elsewhere:
            raise ConfigError(
                "DataLoader workers read the batches, so this process does not know their position: use "
                f"num_workers=0 (it reads in the background anyway), or {WITH_AN_ORDER}"
            )
        saved = self._saved(*self._now())
        if saved.batches and saved.sampler is None:
            warn_once(f"the saved position inside an epoch cannot be resumed: {self._unknown()}")
        return saved.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume after a saved position.

        Raises:
            ConfigError: it lies inside a pass that this loader would not repeat exactly.
        """
        saved, here = SavedPass.from_json(state), self._saved(0, 0, 0)
        wrong_seed = self._wrong_seed(saved, here)
        if saved.batches:
            known = saved.sampler is not None and here.sampler is not None
            why = (saved.differences(here) if known else [self._unknown()]) + ([wrong_seed] if wrong_seed else [])
            if not why and current_worker() is None and saved.batches > self._num_batches():
                why = [f"an epoch has {self._num_batches()} batches here"]
            if why:
                raise ConfigError(
                    f"the state is {saved.batches} batches into epoch {saved.epoch}, which this loader would not make "
                    f"again: {'; '.join(why)}. Restore data, sampler and number of ranks, begin with another "
                    f"epoch (set_epoch({saved.epoch + 1})), or {WITH_AN_ORDER}"
                )
        salt = saved.worker["salt"] if saved.batches and saved.worker else None
        self._sampler.seek(saved.epoch, seed=None if wrong_seed else saved.seed, salt=salt)
        self._loaded, self._newest = saved if saved.batches else None, None

    @property
    def num_done(self) -> int:
        """Batches of the next pass before a position that was loaded; 0 without one."""
        loaded = self._loaded
        goes_on = loaded is not None and loaded.worker is None and self._sampler.epoch == loaded.epoch
        return loaded.batches if goes_on and loaded is not None else 0

    def _now(self) -> tuple[int, int, int]:
        """Return epoch, number of batches handed out, and salt of the pass."""
        sampler, newest, loaded = self._sampler, self._newest, self._loaded
        if newest is not None and newest.draws is not None and newest.draws is sampler.last_pass:
            draws = newest.draws
            over = newest.has_ended or (current_worker() is None and newest.num_done >= self._num_batches())
            return (draws.epoch + 1, 0, 0) if over else (draws.epoch, newest.num_done, draws.salt)
        if loaded is not None and sampler.last_pass is None and sampler.epoch == loaded.epoch:
            return loaded.epoch, loaded.batches, loaded.worker["salt"] if loaded.worker else 0
        return sampler.epoch, 0, 0

    def _num_batches(self) -> int:
        return self._sampler.n_batches(self._datasets.num_rows)

    def _saved(self, epoch: int, batches: int, salt: int) -> SavedPass:
        sampler, worker = self._sampler, current_worker()
        if not self._datasets.num_rows:
            raise ConfigError("a position needs data: call use_collection, add_adatas or add_datasets first")
        settings = known_settings(sampler)
        return SavedPass(
            epoch=epoch,
            batches=batches,
            seed=sampler.pass_seed(),
            rank=sampler.rank if isinstance(sampler, DistributedSampler) else speaking_rank(os.environ),
            sampler=None if settings is None else dict(settings),
            rows=self._datasets.num_rows,
            data=self._datasets.fingerprint,
            worker=None if worker is None else {"number": worker.number, "count": worker.count, "salt": salt},
        )

    def _wrong_seed(self, saved: SavedPass, here: SavedPass) -> str:
        """Return why this loader cannot draw from the saved seed, "" if it can."""
        if saved.seed == here.seed:
            return ""
        if saved.seed is None or here.seed is None:
            return "one of the samplers has a generator, the other has none"
        if self._sampler.is_seeded:
            return "the sampler got another rng: pass the same seed"
        if saved.rank != here.rank:
            return (
                f"it belongs to rank {saved.rank}, this is rank {here.rank}, and each drew its own seed: save the "
                "state of every rank, or pass a seed to the sampler, rng=0"
            )
        return ""

    def _unknown(self) -> str:
        return (
            f"{type(self._sampler).__name__} does not declare what sets its batches. If it draws only from self.rng, "
            f"return its settings from its method pass_settings(); otherwise {WITH_AN_ORDER}"
        )
