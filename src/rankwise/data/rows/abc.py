"""`Sampler`: decides which rows form which batch; and one pass of it: its random numbers and its range of rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rankwise._process.loader_worker import current_worker
from rankwise.data.contract import JSON, IntArray, whole_number
from rankwise.data.feed.workers.starts import PassStarts
from rankwise.data.rows.types import LoadRequest
from rankwise.errors import ConfigError

__all__ = ["Sampler", "lone_copy"]

Rng: TypeAlias = np.random.Generator | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDraws:
    """The source of random numbers for one pass."""

    seed: int
    epoch: int
    salt: int = 0  # distinguishes passes with the same number; 0 if the number is enough

    @property
    def is_odd(self) -> bool:
        """Whether the epoch is odd; neighbouring epochs alternate."""
        return (self.epoch + self.salt) % 2 == 1

    def generator(self, *, request: int = -1) -> np.random.Generator:
        """Return a new generator for one load request, so that any worker can draw requests in any order.

        Without a request it is the generator for the whole pass.
        """
        sequence = np.random.SeedSequence([self.seed, self.epoch, self.salt], spawn_key=(1 + request,))
        return np.random.default_rng(sequence)


def make_generator(rng: Rng) -> np.random.Generator:
    """Return the generator for `rng`: itself, a new one for a seed (0 is a seed), or a new unseeded one for None.

    Raises:
        TypeError: it is anything else.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        return np.random.default_rng(rng)
    raise TypeError(f"rng must be a numpy.random.Generator, an integer seed, or None; got {type(rng).__name__}")


def fresh_seed(rng: np.random.Generator | None) -> int:
    """Draw a seed from a generator, or from the system without one."""
    return int((np.random.default_rng() if rng is None else rng).integers(2**63))


def check_mask(mask: slice) -> slice:
    """Return a mask with an integer start.

    Raises:
        TypeError: it is not a slice.
        ConfigError: it is not a contiguous range, starts below 0, or is empty.
    """
    if not isinstance(mask, slice):
        raise TypeError(f"mask must be a slice of rows, such as slice(0, 1000); got {type(mask).__name__}")
    start, stop = mask.start or 0, mask.stop
    if mask.step not in (None, 1):
        raise ConfigError(f"mask.step must be 1: a mask is one contiguous range; got {mask}")
    if start < 0 or (stop is not None and stop < 0):
        raise ConfigError(f"mask.start and mask.stop must be >= 0, counted from the first row; got {mask}")
    if stop is not None and start >= stop:
        raise ConfigError(f"mask.start must be < mask.stop, or no row is left; got {mask}")
    return slice(start, stop)


def mask_bounds(mask: slice, n_obs: int) -> tuple[int, int]:
    """Return the first row of a mask, and the row after its last."""
    checked = check_mask(mask)
    if n_obs == 0:
        raise ConfigError("the loader has no rows: add data first, with use_collection, add_adata or add_dataset")
    start = int(checked.start)
    stop = n_obs if checked.stop is None else int(checked.stop)
    if stop > n_obs:
        raise ConfigError(
            f"mask.stop ({stop}) exceeds the {n_obs} rows of the loader: make the mask smaller, or add the data first"
        )
    if start >= stop:
        raise ConfigError(f"mask.start ({start}) leaves no row: the loader has {n_obs} rows; move the mask")
    return start, stop


class Sampler(ABC):
    """Decides which rows are read together and which of them form a batch; inherit from it to write your own.

    Only `_sample` is required. `batch_size` and `shuffle` are None until a class or an instance sets them. The default
    `validate` accepts everything, and the default `n_batches` counts by planning a pass.

    Every pass has a number, its epoch: 0, 1, 2, ... in the order of passes, or the number that `set_epoch` chose. When
    a pass begins, `rng` becomes the generator of that epoch, derived from the seed (drawn once from the assigned
    generator) and the epoch. So a sampler that draws from ``self.rng`` in `_sample` can go to any epoch without
    replaying earlier ones, and a pass that was left early does not change later ones.

    In a torch `DataLoader` each of n workers runs `_sample` and reads every n-th request, so all workers must draw the
    same from ``self.rng``. If `rng` is None this is not guaranteed, and one worker reads everything.

    Attributes:
        handles_workers: True for a class whose `_sample` yields only the requests of the worker it runs in.
    """

    handles_workers: bool = False

    _mask: slice = slice(0, None)
    _rng: np.random.Generator | None = None
    _epoch: int = 0
    _epoch_is_set: bool = False
    _seed: int | None = None  # None = it was not drawn yet
    _seeded: np.random.Generator | None = None  # the generator that `_seed` was drawn from, or the one derived from it
    _is_seeded: bool = False
    _draws: PassDraws = PassDraws(seed=0, epoch=0)
    _last_pass: PassDraws | None = None
    _salt_to_repeat: int | None = None
    _starts: PassStarts | None = None  # where workers of a `DataLoader` learn the epoch, if a loader has the sampler

    @property
    def mask(self) -> slice:
        """The range of rows to use: one contiguous slice."""
        return self._mask

    @mask.setter
    def mask(self, value: slice) -> None:
        self._mask = check_mask(value)

    @property
    def rng(self) -> np.random.Generator | None:
        """The source of random numbers; assigning another generator (or seed) starts again at epoch 0."""
        return self._rng

    @rng.setter
    def rng(self, value: np.random.Generator | int | None) -> None:
        self._rng = None if value is None else make_generator(value)
        self._is_seeded = value is not None
        self._restart()

    @property
    def epoch(self) -> int:
        """Number of the next pass."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next pass; later passes count up from it.

        With a `Loader` this also holds for the workers of a torch `DataLoader`, persistent or restarted for each epoch.
        Workers that use a sampler without one do not know each other's passes: unless this is called before each
        epoch, torch's own seed is mixed in.

        Raises:
            ConfigError: it is negative, or not an integer.
        """
        self._epoch, self._epoch_is_set = whole_number("an epoch", epoch, least=0), True
        self._last_pass = self._salt_to_repeat = None
        self._publish()

    @property
    def last_pass(self) -> PassDraws | None:
        """The last pass that was begun; None if another epoch or generator was chosen since."""
        return self._last_pass

    @property
    def is_seeded(self) -> bool:
        """Whether the caller gave a generator or seed: then the seed is the same in the next process."""
        return self._is_seeded

    @property
    def knows_seed(self) -> bool:
        """Whether the seed of the next pass has been drawn: then the caller's generator is not used again."""
        return self._seed is not None and self.rng is self._seeded

    @property
    def passed_elsewhere(self) -> bool:
        """Whether workers of a `DataLoader` began passes that this process, which started them, has not seen."""
        return self._starts is not None and self._starts.begun() is not None

    def pass_settings(self) -> Mapping[str, JSON] | None:
        """Return the settings, besides rows, seed and epoch, that decide the batches of a pass, as JSON.

        A loader can resume inside a pass only if they are known: it repeats the pass up to the saved batch. Your own
        sampler may return its settings here if it draws from ``self.rng`` alone. None = resuming is not possible.
        """
        return None

    def pass_seed(self) -> int | None:
        """Return the seed of later passes, drawing it if necessary; None without a generator."""
        return None if self.rng is None else self._drawn_seed()

    def seek(self, epoch: int, *, seed: int | None, salt: int | None = None) -> None:
        """Make the next pass repeat one that another process made or began.

        Args:
            epoch: its number.
            seed: its seed; None = that of this sampler.
            salt: see `PassDraws`; None = chosen as for other passes.
        """
        self.set_epoch(epoch)
        self._salt_to_repeat = salt
        if seed is not None:
            self._seed, self._seeded = seed, self.rng

    if TYPE_CHECKING:

        @property
        def batch_size(self) -> int | None:
            """Rows of a batch; required for load requests without splits."""

        @property
        def shuffle(self) -> bool | None:
            """Whether to shuffle the rows of load requests without splits; required for those."""

    else:  # a class may define them as properties, an instance may set them
        batch_size = None
        shuffle = None

    def __repr__(self) -> str:
        stop = "" if self.mask.stop is None else self.mask.stop
        mask = f"rows {self.mask.start}:{stop}"
        return f"{type(self).__name__}({mask}, batch_size={self.batch_size}, shuffle={self.shuffle})"

    def n_batches(self, n_obs: int) -> int:
        """Return the number of batches of a pass. The default plans a pass; override it if the number is known.

        Args:
            n_obs: rows of the loader.
        """
        return sum(len(request["splits"]) for request in lone_copy(self).sample(n_obs))

    def validate(self, n_obs: int) -> None:  # noqa: B027  (it may be left out)
        """Refuse settings that do not suit the data; called at the beginning of each pass.

        Args:
            n_obs: rows of the loader.

        Raises:
            ValueError: they do not suit the data.
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
            ValueError: the settings do not suit the data.
            ConfigError: a request has no splits, and batch_size or shuffle is not set.
        """
        self.validate(n_obs)
        worker = current_worker()
        if self._starts is not None and worker is not None:
            self._epoch = self._starts.begin(worker, repeats=False).epoch
        draws = self._draws = self._begin_pass()
        self._last_pass = draws
        if worker is None:
            self._publish()
        requests = self._sample(n_obs)
        try:
            for number, request in enumerate(requests):
                is_mine = worker is None or self.handles_workers or worker.owns(number)
                if worker is not None and not self.handles_workers and self.rng is None:
                    is_mine = worker.number == 0  # others may draw differently
                if not is_mine:
                    continue
                if not isinstance(request, Mapping) or "requests" not in request:
                    raise TypeError(
                        f"_sample of {type(self).__name__} must yield load requests, "
                        "LoadRequest(requests=[slice(0, 64)], splits=...); got "
                        f"{f'keys {list(request)}' if isinstance(request, Mapping) else type(request).__name__}"
                    )
                if request.get("splits") is None:
                    yield {
                        "requests": request["requests"],
                        "splits": self._cut(request, draws.generator(request=number)),
                    }
                else:
                    yield request
        finally:
            if isinstance(requests, Generator):
                requests.close()  # now, not at garbage collection

    def restrict(self, mask: slice) -> None:
        """Use a part of the mask for the next passes; for samplers that wrap others."""
        self.mask = mask

    def follow(self, draws: PassDraws) -> None:
        """Make the next pass that of the sampler which wraps this one."""
        self._epoch, self._salt_to_repeat = draws.epoch, draws.salt

    def share_epoch(self) -> None:
        """Let the workers of a `DataLoader` follow the epochs of this sampler; a loader calls it."""
        if self._starts is None:
            self._starts = PassStarts(self._epoch, 0, 0)

    def _publish(self) -> None:
        """Make the next pass of the workers that of this sampler."""
        if self._starts is not None:
            self._starts.publish(self._epoch, 0, 0)

    def _restart(self) -> None:
        self._epoch, self._last_pass = 0, None
        self._publish()

    def _begin_pass(self) -> PassDraws:
        draws = self._next_draws(self._drawn_seed())
        if self.rng is not None:
            self._rng = draws.generator()  # assigning `rng` would start again at epoch 0
        self._seeded = self.rng
        self._epoch += 1
        return draws

    def _drawn_seed(self) -> int:
        if self._seed is None or self.rng is not self._seeded:
            self._seed, self._seeded = fresh_seed(self.rng), self.rng
        return self._seed

    def _next_draws(self, seed: int) -> PassDraws:
        salt, worker = self._salt_to_repeat, current_worker()
        if salt is None:  # 0 if the epoch alone distinguishes the pass from all others of this sampler
            salt = 0 if worker is None or self._epoch_is_set or self._starts is not None else worker.salt
        self._salt_to_repeat = None
        return PassDraws(seed=seed, epoch=self._epoch, salt=salt)

    def _cut(self, request: LoadRequest, rng: np.random.Generator) -> list[IntArray]:
        for name in ("batch_size", "shuffle"):
            if getattr(self, name) is None:
                raise ConfigError(
                    f"a load request without splits needs the sampler's {name}, but {type(self).__name__} "
                    "has None: yield splits, or set it"
                )
        listed = request["requests"]
        size = len(listed) if isinstance(listed, np.ndarray) else sum(part.stop - part.start for part in listed)
        places = rng.permutation(size) if self.shuffle else np.arange(size)
        batch_size = int(self.batch_size or size)
        return np.split(places, range(batch_size, size, batch_size))


def lone_copy(sampler: Sampler, *, copied: Callable[[Sampler], Sampler] = copy.deepcopy) -> Sampler:
    """Return a copy whose passes no worker counts or learns of."""
    made = copied(sampler)
    made.__dict__["_starts"] = None
    return made
