"""What the trainer can be fed from."""

from __future__ import annotations

from rankwise.errors import ConfigError

__all__ = ["check_loader"]

_WANTED = ("__iter__", "__len__", "set_epoch", "mark_done", "state_dict", "load_state_dict")


def check_loader(name: str, loader: object) -> None:
    """Refuse what has no position to mark, save and load: then a run could not go on where it was.

    Args:
        name: of the argument.
        loader: what was passed.

    Raises:
        ConfigError: it is no `BatchLoader`.
    """
    missing = [method for method in _WANTED if not callable(getattr(loader, method, None))]
    if missing:
        raise ConfigError(
            f"{name}= wants a loader with a position (SampleLoader, DatasetLoader, OrderedLoader, a Pipeline of an "
            f"index, or your own BatchLoader), got a {type(loader).__name__}, which has no {', '.join(missing)}: pass "
            "a loader of rankwise itself, it reads in the background; for a map-style Dataset that is "
            "DatasetLoader(dataset, order=..., num_workers=...); a torch DataLoader goes with ExactStep in a loop of "
            "your own"
        )
