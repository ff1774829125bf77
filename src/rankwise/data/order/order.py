"""`Order`: the samples of each step, as a pure function of (seed, epoch, position, recipe)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import IntArray, OrderState, Step, whole_number
from rankwise.data.order.lanes import Grid, OrderIds, samples_at
from rankwise.data.order.layout import DEFAULT_LANES, MAX_LANES, Facts, Recipe, choose_window, opened_samples
from rankwise.errors import ConfigError

Kind = Literal["shuffle", "sequential"]
Remainder = Literal["split", "drop", "pad"]


@dataclass(frozen=True, slots=True, init=False)
class Order:
    """Decides the samples of each global batch; the same on every rank, at any world size and after every restart.

    An epoch yields each sample once. An order costs no memory and starts in milliseconds for any number of samples.
    Implements the contract's `Order`; hashable, comparable and cheap to pickle (`samples` is kept as a number).

    Samples can also be drawn from a collection of rows, newly in each epoch: the row of a sample then depends on
    (seed, epoch, sample) alone. Loaders draw as their order says.

    Args:
        samples: number of samples, a `Source` (its grid, fields and fingerprint are used), or anything with ``len()``;
            with `rankwise.data.rows` also a collection, the path of one or of a store or h5ad file, an AnnData, or a
            list of them.
        batch_size: samples of a *global* batch, over all ranks. May change at any time, also in mid-epoch.
        seed: any int; another seed gives another order. None = the seed of `bind` inside its block, else 1889.
        kind: "shuffle", or "sequential" (sample p at position p; one lane, so ranks take contiguous runs of a batch);
            default: the source's preference, else "shuffle".
        remainder: what happens to the last samples of an epoch if they do not fill a batch: "split" makes them a
            smaller step over all ranks, "drop" leaves them out, "pad" fills the batch with repeats of weight 0.
        lanes: parallel runs of the data, 1 to min(4096, samples); default: min(64, batch_size, chunks), or the source's
            preference. A step takes equally many samples from each.
        window: chunks of one lane that are mixed together; default: as many as fit into 128 MiB decoded over all
            lanes, 16 if the chunk size is unknown, 1 if a chunk has one sample.
        chunk_samples: neighbouring samples that are stored together; default: the source's, else 1.
        chunk_bytes: decoded bytes of a chunk; default: from the source's fields.
        fingerprint: identity of the data; default: the source's. Without one, the number of samples stands for it.
        balance: draw rows so that all values of this column are equally likely.
        weights: draw rows in proportion to these numbers, one for each row.
        mix: fractions of several collections, in their order or by path.
        num_samples: number of draws in an epoch; default: the number of rows.
        together: number of draws that come from one chunk.

    Attributes:
        grid: the parameters of the order: samples, samples per chunk, lanes, window.
        draw: how samples are drawn, for loaders; None = samples are the rows themselves.

    Raises:
        ConfigError: an argument is out of range, no sample would be left, or the samples cannot be drawn like this.
    """

    samples: Any
    batch_size: int
    seed: int
    kind: Kind
    remainder: Remainder
    lanes: int | None
    window: int | None
    chunk_samples: int | None
    chunk_bytes: int | None
    fingerprint: str | None
    draw: Any = field(repr=False, compare=False)  # the fingerprint covers it
    grid: Grid = field(repr=False)
    recipe: str = field(repr=False)
    """The parameters of the order in readable form, ending in a hash; see `OrderState.recipe`."""

    def __init__(
        self,
        samples: Any,
        *,
        batch_size: int,
        seed: int | None = None,
        kind: Kind | None = None,
        remainder: Remainder = "split",
        lanes: int | None = None,
        window: int | None = None,
        chunk_samples: int | None = None,
        chunk_bytes: int | None = None,
        fingerprint: str | None = None,
        balance: str | None = None,
        weights: Any = None,
        mix: Any = None,
        num_samples: int | None = None,
        together: int | None = None,
    ) -> None:
        asked = {"balance": balance, "weights": weights, "mix": mix, "num_samples": num_samples, "together": together}
        facts = Facts.of(opened_samples(samples, {name: value for name, value in asked.items() if value is not None}))
        locality = facts.locality
        own_kind = None if locality is None else locality.order_kind
        told = None if locality is None else locality.chunk_samples
        self._set(
            samples=facts.num_samples,
            batch_size=whole_number("batch_size of an Order (the global batch)", batch_size, least=1),
            seed=_world_seed() if seed is None else whole_number("seed", seed),
            kind=kind or own_kind or "shuffle",
            remainder=remainder,
            lanes=lanes,
            window=window,
            chunk_samples=told if chunk_samples is None else whole_number("chunk_samples", chunk_samples, least=1),
            chunk_bytes=facts.chunk_bytes if chunk_bytes is None else whole_number("chunk_bytes", chunk_bytes, least=1),
            fingerprint=facts.fingerprint if fingerprint is None else fingerprint,
            draw=facts.draw,
        )
        self._check_choices(own_kind)
        wish = (None, None) if locality is None else locality.layout(self.batch_size)
        if self.kind == "shuffle":
            self._settle(self._shuffled_grid(*wish))
        else:
            self._settle(self._sequential_grid(wish[0] if own_kind == "sequential" else None))

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle(self, grid: Grid) -> None:
        self._set(grid=grid, recipe=str(Recipe.of(grid, kind=self.kind, fingerprint=self.fingerprint)))

    def _check_choices(self, own_kind: str | None) -> None:
        for name, choices in (("kind", get_args(Kind)), ("remainder", get_args(Remainder))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"Order needs {name} to be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if own_kind not in (None, self.kind):
            raise ConfigError(f"these samples define their own order: remove kind={self.kind!r}")
        if self.remainder == "drop" and self.samples < self.batch_size:
            raise ConfigError(
                f'remainder="drop" leaves no batch: {self.samples} samples do not fill one batch of {self.batch_size}. '
                'Use a smaller batch_size or remainder="split"'
            )

    def _sequential_grid(self, wished_lanes: int | None) -> Grid:
        for name in ("lanes", "window"):
            if getattr(self, name) is not None:
                raise ConfigError(f'kind="sequential" does not accept {name}: remove {name} or use kind="shuffle"')
        return Grid(num_samples=self.samples, chunk_samples=1, lanes=min(wished_lanes or 1, self.samples), window=1)

    def _shuffled_grid(self, wished_lanes: int | None, wished_window: int | None) -> Grid:
        chunk = min(self.chunk_samples or 1, self.samples)
        num_chunks = -(-self.samples // chunk)
        if self.lanes is not None:
            lanes = whole_number("lanes", self.lanes, least=1, most=min(MAX_LANES, self.samples))
        elif wished_lanes is not None:
            lanes = min(wished_lanes, self.batch_size, num_chunks, MAX_LANES)
        else:
            lanes = min(DEFAULT_LANES, self.batch_size, num_chunks)
        if self.window is None and wished_window is not None:
            window = wished_window
        elif self.window is None:
            window = choose_window(
                lanes=lanes, chunk_samples=chunk, chunk_bytes=self.chunk_bytes, num_chunks=num_chunks
            )
        else:
            window = whole_number("window", self.window, least=1)
        # A window that reaches beyond the last chunk gives the same order as one that ends there.
        return Grid(num_samples=self.samples, chunk_samples=chunk, lanes=lanes, window=min(window, num_chunks))

    def start(self, epoch: int = 0) -> OrderState:
        """Return the state at the start of an epoch."""
        return OrderState(seed=self.seed, epoch=whole_number("epoch", epoch, least=0), position=0, recipe=self.recipe)

    def state_at(self, *, epoch: int, position: int) -> OrderState:
        """Return the state after `position` samples of an epoch; the start of the next epoch if no step is left."""
        if self._steps_left(position) == 0:
            epoch, position = epoch + 1, 0
        return OrderState(seed=self.seed, epoch=epoch, position=position, recipe=self.recipe)

    def num_samples(self, epoch: int) -> int:  # noqa: ARG002  (the same for every epoch of this kind of order)
        """Return how many samples an epoch yields from its start: all, or with "drop" those that fill batches."""
        total: int = self.samples
        return total - total % self.batch_size if self.remainder == "drop" else total

    def num_steps(self, state: OrderState) -> int:
        """Return how many steps are left in the epoch of `state`.

        Zero at the end of the epoch: at position == samples, or with "drop" if no whole batch is left.

        Raises:
            ConfigError: the state belongs to another order.
        """
        self._check_state(state)
        return self._steps_left(state.position)

    def step(self, state: OrderState) -> Step:
        """Return the step that begins at `state`; at the end of an epoch the first step of the next one.

        Pure: any rank may call it at any time, without the others. The cost does not depend on the batch size: ids are
        computed on demand. Its `index` is ``start // batch_size``: the number of steps before it if all had the current
        batch size. After the last step of an epoch, `resume` is the start of the next epoch.

        Raises:
            ConfigError: the state belongs to another order (see `resumed`).
        """
        self._check_state(state)
        done = self._steps_left(state.position) == 0
        epoch, start = (state.epoch + 1, 0) if done else (state.epoch, state.position)
        count = min(self.batch_size, self.samples - start)
        size = self.batch_size if self.remainder == "pad" else count
        members = OrderIds(
            grid=self.grid,
            seed=self.seed,
            epoch=epoch,
            start=start,
            count=count,
            size=size,
            batch_size=self.batch_size,
            shuffled=self.kind == "shuffle",
        )
        return Step(
            epoch=epoch,
            index=start // self.batch_size,
            start=start,
            count=count,
            size=size,
            members=members,
            resume=self.state_at(epoch=epoch, position=start + count),
        )

    def ids(self, positions: npt.ArrayLike, epoch: int) -> IntArray:
        """Return the samples at given positions of an epoch, int64 of the same shape.

        Args:
            positions: integers in [0, samples), in any order and shape.
            epoch: epoch, from 0.

        Raises:
            ConfigError: a position is outside the epoch or not an integer, or the epoch is negative.
        """
        wanted = np.asarray(positions)
        if wanted.size == 0:
            return np.zeros(wanted.shape, dtype=np.int64)
        if wanted.dtype.kind not in "iu":
            raise ConfigError(f"Order.ids needs integer positions, got dtype {wanted.dtype}")
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= self.samples or epoch < 0:
            raise ConfigError(
                f"Order.ids needs positions in [0, {self.samples}) and epoch >= 0; got [{low}, {high}], epoch {epoch}"
            )
        flat = wanted.astype(np.int64).ravel()
        found = flat if self.kind == "sequential" else samples_at(self.grid, self.seed, int(epoch), flat)
        return found.reshape(wanted.shape)

    def resumed(self, state: OrderState | str) -> Order:
        """Return the order that continues a saved one: it takes derived lanes and windows from the state.

        They are derived from the batch size, which may have changed since the state was saved.

        Args:
            state: a saved state, or a recipe alone.

        Raises:
            ConfigError: the saved order differs in anything else; the message says what.
        """
        saved = Recipe.parse(state if isinstance(state, str) else state.recipe)
        adopted = copy.copy(self)
        if self.kind == saved.kind == "shuffle" and 1 <= saved.lanes <= min(MAX_LANES, self.samples) and saved.window:
            lanes = saved.lanes if self.lanes is None else self.grid.lanes
            window = saved.window if self.window is None else self.grid.window
            grid = self.grid
            adopted._settle(  # noqa: SLF001  (a fresh copy of our own class)
                Grid(num_samples=grid.num_samples, chunk_samples=grid.chunk_samples, lanes=lanes, window=window)
            )
        if str(saved) != adopted.recipe:
            raise adopted._other_recipe(str(saved))  # noqa: SLF001
        if isinstance(state, OrderState):
            adopted._check_state(state)  # noqa: SLF001
        return adopted

    def _steps_left(self, position: int) -> int:
        left: int = self.samples - position
        return left // self.batch_size if self.remainder == "drop" else -(-left // self.batch_size)

    def _other_recipe(self, recipe: str) -> ConfigError:
        differing = Recipe.parse(self.recipe).differences(Recipe.parse(recipe))
        return ConfigError(
            f"the saved order differs from this one in: {', '.join(differing)}. Saved {recipe}, now {self.recipe}. "
            "Restore the data and arguments; if only the batch size changed, continue with order.resumed(state); "
            "to start over, use order.start()"
        )

    def _check_state(self, state: OrderState) -> None:
        if state.recipe != self.recipe:
            raise self._other_recipe(state.recipe)
        if state.seed != self.seed:
            raise ConfigError(
                f"the saved order has seed {state.seed}, this one {self.seed}: pass seed={state.seed} to continue it, "
                "or start over with order.start()"
            )
        if state.position > self.samples:
            raise ConfigError(
                f"the state is damaged: its position is {state.position}, but an epoch has {self.samples} samples"
            )


def _world_seed() -> int:
    """Return the seed that this process was bound with, else the default of `bind`."""
    from rankwise.world.adopt import bound_world

    world = bound_world()
    return 1889 if world is None else world.seed
