"""`SavedPass`: how far a pass has come, as it is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from rankwise.data.contract import JSON
from rankwise.errors import ConfigError

__all__ = ["SavedPass"]

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPass:
    """Where a loader stands: behind the first batches of a pass.

    Attributes:
        epoch: number of the pass.
        batches: how many were handed out.
        seed: of the sampler; None = it has no generator.
        rank: whose loader it is.
        sampler: settings of the sampler; None = they are not known.
        rows: rows of the loader.
        data: hash of its matrices' metadata.
        worker: of a worker of a `DataLoader` its `number`, the `count` of all, and the `salt` of the pass; else None.
    """

    epoch: int
    batches: int
    seed: int | None
    rank: int
    sampler: Mapping[str, JSON] | None
    rows: int
    data: str
    worker: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        made: dict[str, JSON] = json.loads(json.dumps({"version": _VERSION, **asdict(self)}))
        return made

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ConfigError: it is something else.
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
            if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
                raise ConfigError(f"the state of a loader wants a whole number for {name}, got {state[name]!r}")
        return cls(**{name: value for name, value in state.items() if name != "version"})

    def differences(self, here: SavedPass) -> list[str]:
        """Return in words what of the data, the sampler and the workers is not as it was."""
        was, now = _flat(self), _flat(here)
        names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        return [f"{name} was {was.get(name)}, is {now.get(name)}" for name in names]


def _flat(saved: SavedPass) -> dict[str, Any]:
    state: dict[str, Any] = saved.to_json()
    worker = state["worker"] or {}
    place = {"worker": f"{worker['number']} of {worker['count']}"} if worker else {}
    return {"rows": saved.rows, "data": saved.data, **(state["sampler"] or {}), **place}
