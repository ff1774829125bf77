"""`Sampler`: what decides which rows form which batch."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON, IntArray
from rankwise.data.rows.passes import EpochMark, PassDraws, check_mask, fresh_seed, make_generator
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError

__all__ = ["Sampler"]


class Sampler(ABC):
    """Decides which rows are read together and which of them form a batch; inherit from it to write an own one.

    Only `_sample` must be written. `batch_size` and `shuffle` are None until a class or an instance sets them;
    `validate` accepts everything, and `n_batches` counts, unless they are written too.

    Every pass has a number, its epoch: 0, 1, 2, ... as passes are begun, or what `set_epoch` says. At the beginning of
    a pass `rng` becomes the generator of that epoch, a function of the seed (drawn once from the generator that was
    assigned) and of the number: an own sampler that draws from ``self.rng`` in `_sample` can be set to any epoch
    without replaying those before, and one that was left early does not change those after.

    Several workers of a torch `DataLoader` each run `_sample`, and read every so-many-th of its requests: all must draw
    the same, from ``self.rng``. Where `rng` is None that is not known, and one worker reads everything.

    Attributes:
        handles_workers: True in a class whose `_sample` yields the requests of the worker that it runs in alone.
    """

    handles_workers: bool = False

    _mask: slice = slice(0, None)
    _rng: np.random.Generator | None = None
    _epoch: int = 0
    _epoch_is_set: bool = False
    _seed: int = 0
    _seeded: np.random.Generator | None = None  # what `_seed` was drawn from, or what was made of it
    _has_seed: bool = False
    _is_seeded: bool = False
    _draws: PassDraws = PassDraws(seed=0, epoch=0)
    _last_pass: PassDraws | None = None
    _salt_to_repeat: int | None = None
    _mark: EpochMark | None = None
    _num_marked: int = 0  # choices of the mark that this sampler knows of
    _num_elsewhere: int = 0  # passes of workers that it knows of

    @property
    def mask(self) -> slice:
        """The range of rows that may be taken: one contiguous slice."""
        return self._mask

    @mask.setter
    def mask(self, value: slice) -> None:
        self._mask = check_mask(value)

    @property
    def rng(self) -> np.random.Generator | None:
        """Where random numbers come from; assigning another generator (or seed) begins at epoch 0 again."""
        return self._rng

    @rng.setter
    def rng(self, value: np.random.Generator | int | None) -> None:
        self._rng = None if value is None else make_generator(value)
        self._is_seeded = value is not None
        self._epoch, self._last_pass = 0, None

    @property
    def epoch(self) -> int:
        """Number of the next pass."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass; the ones after it count on.

        Workers of a torch `DataLoader` that are started anew for each epoch never see the passes of one another: call
        it before each epoch to make their order a function of the seed. Otherwise torch's own seed is mixed in. Workers
        that stay see it too.

        Raises:
            ConfigError: it is below 0, or no whole number.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, (int, np.integer)) or epoch < 0:
            raise ConfigError(f"an epoch is a whole number of at least 0, got {epoch!r}")
        self._epoch, self._epoch_is_set = int(epoch), True
        self._last_pass = self._salt_to_repeat = None
        if self._mark is not None:
            self._num_marked = self._mark.choose(self._epoch)
            self._num_elsewhere = self._mark.num_passes

    @property
    def last_pass(self) -> PassDraws | None:
        """The pass that was begun last; None where another epoch, or generator, was chosen since."""
        return self._last_pass

    @property
    def is_seeded(self) -> bool:
        """Whether the caller chose where random numbers come from: then the seed is the same in the next process."""
        return self._is_seeded

    @property
    def knows_seed(self) -> bool:
        """Whether the seed of the next pass was drawn already: nobody's generator is asked for it any more."""
        return self._has_seed and self.rng is self._seeded

    @property
    def passed_elsewhere(self) -> bool:
        """Whether workers of a `DataLoader` began passes that this process, which started them, knows nothing of."""
        return self._mark is not None and self._mark.num_passes != self._num_elsewhere

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return what decides the batches of a pass besides the rows of the loader, the seed and the epoch, as JSON.

        A loader goes on inside a pass only where this is known: it makes the pass again, up to the batch where it was.
        An own sampler that draws from ``self.rng`` alone may return its settings here. None = it cannot be continued.
        """
        return None

    def pass_seed(self) -> int | None:
        """Return the seed of the passes to come, drawn now if it was not yet; None without a generator."""
        assigned = self.rng
        if not self._has_seed or assigned is not self._seeded:
            self._seed, self._has_seed, self._seeded = fresh_seed(assigned), True, assigned
        return None if assigned is None else self._seed

    def go_to(self, epoch: int, *, seed: int | None, salt: int | None = None) -> None:
        """Make the next pass one that another process made, or began.

        Args:
            epoch: its number.
            seed: its seed; None = that of this sampler.
            salt: see `PassDraws`; None = chosen as for any other pass.
        """
        self.set_epoch(epoch)
        self._salt_to_repeat = salt
        if seed is not None:
            self._seed, self._has_seed, self._seeded = seed, True, self.rng

    if TYPE_CHECKING:

        @property
        def batch_size(self) -> int | None:
            """Rows of a batch; needed where load requests come without splits."""

        @property
        def shuffle(self) -> bool | None:
            """Whether rows of load requests without splits are shuffled; needed where there are such."""

    else:  # a class may make them properties, an instance may just set them
        batch_size = None
        shuffle = None

    def __repr__(self) -> str:
        stop = "" if self.mask.stop is None else self.mask.stop
        mask = f"rows {self.mask.start}:{stop}"
        return f"{type(self).__name__}({mask}, batch_size={self.batch_size}, shuffle={self.shuffle})"

    def n_batches(self, n_obs: int) -> int:
        """Return the number of batches of a pass: here by planning one, so write it where it is known.

        Args:
            n_obs: rows of the loader.
        """
        return sum(len(request["splits"]) for request in copy.deepcopy(self).sample(n_obs))

    def validate(self, n_obs: int) -> None:  # noqa: B027  (it may be left out)
        """Refuse a configuration that does not suit the data; called at the beginning of each pass.

        Args:
            n_obs: rows of the loader.

        Raises:
            ValueError: it does not.
        """

    @abstractmethod
    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        """Yield the load requests of a pass.

        Args:
            n_obs: rows of the loader.
        """

    def sample(self, n_obs: int) -> Generator[LoadRequest, None, None]:
        """Make one pass: validate, then yield load requests, each with splits.

        Args:
            n_obs: rows of the loader.

        Raises:
            ValueError: the configuration does not suit the data, or a request without splits cannot be cut.
        """
        self.validate(n_obs)
        self._look_at_mark()
        draws = self._draws = self._begin_pass()
        self._last_pass = draws
        requests = self._sample(n_obs)
        try:
            for number, request in enumerate(requests):
                if not self._reads(number):
                    continue
                if not isinstance(request, Mapping) or "requests" not in request:
                    raise TypeError(
                        f"_sample of {type(self).__name__} yields load requests, "
                        "LoadRequest(requests=[slice(0, 64)], splits=...); got "
                        f"{f'keys {list(request)}' if isinstance(request, Mapping) else type(request).__name__}"
                    )
                if request.get("splits") is None:
                    yield {"requests": request["requests"], "splits": self._cut(request, draws.request(number))}
                else:
                    yield request
        finally:
            if isinstance(requests, Generator):
                requests.close()  # at once, not when it is collected

    def restrict(self, mask: slice) -> None:
        """Take a part of the mask for the passes that begin now; for samplers that wrap others."""
        self.mask = mask

    def follow(self, draws: PassDraws) -> None:
        """Make the next pass that of another sampler, which wraps this one."""
        self._epoch, self._salt_to_repeat = draws.epoch, draws.salt

    def share_epoch(self) -> None:
        """Let processes that are started from here later see the epochs that are chosen; a loader calls it."""
        if self._mark is None:
            with contextlib.suppress(OSError):  # no memory to share: only workers that stay would look at it
                self._mark = EpochMark()

    def _look_at_mark(self) -> None:
        if self._mark is None:
            return
        if current_worker() is None:
            self._num_elsewhere = self._mark.num_passes
            return
        self._mark.note_pass()
        choices, epoch = self._mark.read()
        if choices != self._num_marked:
            self._epoch, self._epoch_is_set, self._num_marked = epoch, True, choices

    def _reads(self, number: int) -> bool:
        worker = current_worker()
        if worker is None or self.handles_workers:
            return True
        return worker.number == 0 if self.rng is None else worker.owns(number)

    def _begin_pass(self) -> PassDraws:
        epoch, is_seeded = self._epoch, self._is_seeded
        self.pass_seed()
        draws = self._next_draws(self._seed)
        if self.rng is not None:
            self.rng = draws.whole()
        self._seeded, self._is_seeded = self.rng, is_seeded
        self._epoch = epoch + 1
        return draws

    def _next_draws(self, seed: int) -> PassDraws:
        salt = self._salt() if self._salt_to_repeat is None else self._salt_to_repeat
        self._salt_to_repeat = None
        return PassDraws(seed=seed, epoch=self._epoch, salt=salt)

    def _salt(self) -> int:
        """0 where the number of the pass tells it apart from all others of this sampler."""
        worker = current_worker()
        if worker is None or (self._epoch_is_set and (self._mark is None or self._mark.is_first_use(worker.salt))):
            return 0
        return worker.salt

    def _cut(self, request: LoadRequest, rng: np.random.Generator) -> list[IntArray]:
        for name in ("batch_size", "shuffle"):
            if getattr(self, name) is None:
                raise ConfigError(
                    f"a load request without splits wants the sampler's {name} to be set; {type(self).__name__} "
                    "has None: yield splits, or set it"
                )
        listed = request["requests"]
        size = len(listed) if isinstance(listed, np.ndarray) else sum(part.stop - part.start for part in listed)
        places = rng.permutation(size) if self.shuffle else np.arange(size)
        batch_size = int(self.batch_size or size)
        return np.split(places, range(batch_size, size, batch_size))
