"""`Standing`: how far the passes of a loader have come, to be saved and gone on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.loader.held import HeldDatasets
from rankwise.data.rows.loader.prefetch import WITH_AN_ORDER, SavedPass, UnderWay
from rankwise.data.rows.notices import process_rank, say_once
from rankwise.data.rows.passes import known_settings
from rankwise.data.rows.samplers import DistributedSampler
from rankwise.errors import ConfigError

__all__ = ["Standing"]


class Standing:
    """Where a loader stands: in which pass, behind how many batches.

    Args:
        sampler: of the loader.
        datasets: of the loader.
    """

    def __init__(self, sampler: Sampler, datasets: HeldDatasets) -> None:
        self._sampler, self._datasets = sampler, datasets
        self._newest: UnderWay | None = None
        self._loaded: SavedPass | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_newest": None}

    def next_pass(self) -> UnderWay:
        """Return the pass that is begun now; it goes on from what was loaded, if that is of its epoch."""
        self._newest, self._loaded = UnderWay(self._sampler, self._loaded), None
        return self._newest

    def foreseen_pass(self, sampler: Sampler) -> UnderWay:
        """Return the pass that would begin now.

        Args:
            sampler: a copy that draws it.
        """
        return UnderWay(sampler, self._loaded)

    def state_dict(self) -> dict[str, JSON]:
        """Return the position behind the last batch that was handed out.

        Raises:
            ConfigError: workers of a `DataLoader` read, which alone know how far they are; or there are no rows.
        """
        if current_worker() is None and self._sampler.passed_elsewhere:
            raise ConfigError(
                "workers of a DataLoader read the batches, and this process does not know how far they are: take "
                f"num_workers=0 (reading goes on in the background all the same), or {WITH_AN_ORDER}"
            )
        saved = self._saved(*self._position())
        if saved.batches and saved.sampler is None:
            say_once(f"a position inside an epoch was saved that cannot be gone on from: {self._unknown()}")
        return saved.to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on behind a saved position.

        Raises:
            ConfigError: it lies inside a pass that this loader would not make again.
        """
        saved, here = SavedPass.from_json(state), self._saved(0, 0, 0)
        wrong_seed = self._wrong_seed(saved, here)
        if saved.batches:
            self._refuse_others(saved, here, wrong_seed)
        salt = saved.worker["salt"] if saved.batches and saved.worker else None
        self._sampler.go_to(saved.epoch, seed=None if wrong_seed else saved.seed, salt=salt)
        self._loaded, self._newest = saved if saved.batches else None, None

    @property
    def num_done(self) -> int:
        """Batches of the next pass that lie before a position that was loaded; 0 without."""
        loaded = self._loaded
        goes_on = loaded is not None and loaded.worker is None and self._sampler.epoch == loaded.epoch
        return loaded.batches if goes_on and loaded is not None else 0

    def _position(self) -> tuple[int, int, int]:
        """Epoch, batches that were handed out, and salt of the pass."""
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
            raise ConfigError("a position belongs to data: call use_collection, add_adatas or add_datasets first")
        settings = known_settings(sampler)
        return SavedPass(
            epoch=epoch,
            batches=batches,
            seed=sampler.pass_seed(),
            rank=sampler.rank if isinstance(sampler, DistributedSampler) else process_rank(),
            sampler=None if settings is None else dict(settings),
            rows=self._datasets.num_rows,
            data=self._datasets.fingerprint,
            worker=None if worker is None else {"number": worker.number, "count": worker.count, "salt": salt},
        )

    def _wrong_seed(self, saved: SavedPass, here: SavedPass) -> str:
        """Why this loader cannot draw from the saved seed, "" if it can."""
        if saved.seed == here.seed:
            return ""
        if saved.seed is None or here.seed is None:
            return "one of the samplers has a generator, the other has none"
        if self._sampler.is_seeded:
            return "the sampler was given another rng: give it the same seed"
        if saved.rank != here.rank:
            return (
                f"it is that of rank {saved.rank}, this is rank {here.rank}, and each drew a seed of its own: save the "
                "state of every rank, or give the sampler a seed, rng=0"
            )
        return ""

    def _refuse_others(self, saved: SavedPass, here: SavedPass, wrong_seed: str) -> None:
        why = [] if saved.sampler is not None and here.sampler is not None else [self._unknown()]
        why += [] if why else saved.differences(here)
        why += [wrong_seed] if wrong_seed else []
        if not why and current_worker() is None and saved.batches > self._num_batches():
            why = [f"an epoch has {self._num_batches()} batches here"]
        if why:
            raise ConfigError(
                f"the state lies {saved.batches} batches inside epoch {saved.epoch}, which this loader would not make "
                f"again: {'; '.join(why)}. Let data, sampler and number of ranks be as they were, begin with another "
                f"epoch (set_epoch({saved.epoch + 1})), or {WITH_AN_ORDER}"
            )

    def _unknown(self) -> str:
        return (
            f"{type(self._sampler).__name__} does not tell what decides its batches. Where it draws from self.rng "
            f"alone, let its method pass_settings() return its settings; else {WITH_AN_ORDER}"
        )
