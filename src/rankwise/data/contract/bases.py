"""Base classes with defaults, for sources and loaders written by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rankwise.data.contract.protocols import BatchLoader, Order, SamplesDefaults, SourceDefaults, Stateful
from rankwise.errors import ConfigError


class _Closed:
    """A context manager that closes the object."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BaseSamples(SamplesDefaults):
    """`Samples` without information about storage; a subclass adds `fingerprint`, `num_samples` and `fields`."""


class BaseSource(_Closed, BaseSamples, SourceDefaults):
    """A `Source` without options; a subclass adds `fingerprint`, `num_samples`, `fields`, `plan` and `read`.

    Its samples are read step by step, only once their epoch was asked for. Leaving its context closes it.
    """

    def __repr__(self) -> str:
        source: Any = self  # with the members of a subclass
        fields = ", ".join(f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in source.fields.items())
        return f"{type(self).__name__}({source.num_samples} samples; {fields})"


class BaseLoader(_Closed, BatchLoader):
    """All that the trainer asks of a loader, with defaults for unknown facts; a subclass implements `BatchLoader`."""

    @property
    def order(self) -> Order | None:
        """The order of its steps, after `load_state_dict` the resumed one; None = it has no order."""
        return None

    @property
    def samples(self) -> Any:
        """The `Source` or the map-style dataset with its samples; None = unknown."""
        return None

    @property
    def num_epoch_steps(self) -> int | None:
        """Steps of the whole epoch, done or not; ``len`` counts the remaining ones. None = unknown."""
        return None

    @property
    def micro_batch(self) -> int | None:
        """Most samples of this rank in one batch; None = its whole share at once."""
        return None

    @property
    def takes_speeds(self) -> bool:
        """Whether `set_speeds` may cut the steps of its order by speed; `equal_because` names exceptions."""
        return False

    @property
    def equal_because(self) -> str:
        """Why a loader that takes speeds must cut equal shares; "" if it may cut by speed."""
        return ""

    @property
    def speeds(self) -> tuple[int, ...] | None:
        """The speeds by which the ranks' shares are cut, see `shares`; None if shares are equal."""
        return None

    def set_speeds(self, speeds: Sequence[float] | None) -> None:
        """Cut shares in proportion to the speeds of the ranks, from the next iteration on; None makes them equal."""
        raise ConfigError(f"speeds={speeds} needs a loader over an Order; {type(self).__name__} cannot cut its steps")

    def start_prefetch(self) -> bool:
        """Begin to read what the next iteration needs, without changing it; return whether anything is read."""
        return False

    def expect_last_epoch(self) -> None:
        """Say that no iteration will follow the next one soon. This does not change the next one."""

    @property
    def rank_state(self) -> Stateful | None:
        """State that a checkpoint saves for each rank, in addition to `state_dict`; None = nothing."""
        return None
