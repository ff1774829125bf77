"""One rank looks at the stores, all get the same index."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.data.crops.index.finding import CellFinder
from rankwise.data.crops.index.image import CropImage
from rankwise.data.crops.index.sharing import SharedMaps
from rankwise.errors import DesyncError
from rankwise.world import World

__all__ = ["make_together"]

_Images = tuple[CropImage, ...]


def make_together(
    world: World, finder: CellFinder, gather: Callable[[], _Images], settle: Callable[[_Images], str]
) -> None:
    """Gather images and maps on the main rank, and settle the index on all. Every rank calls it.

    Args:
        world: several ranks.
        finder: this rank's; ends with the maps of all.
        gather: opens the images; called on the main rank.
        settle: makes the tables of an index and returns its fingerprint; called on every rank.

    Raises:
        DesyncError: another rank failed, or the fingerprints differ.
    """
    fingerprint = ""

    def make() -> tuple[_Images, SharedMaps, str]:
        nonlocal fingerprint
        finder.shared = SharedMaps()
        images = gather()
        fingerprint = settle(images)
        return images, finder.shared, fingerprint

    images, finder.shared, wanted = world.from_main(make)
    error: Exception | None = None
    if not world.is_main:
        try:
            fingerprint = settle(images)
        except Exception as caught:  # noqa: BLE001  (told to all ranks, then raised)
            error = caught
        if error is None and fingerprint != wanted:
            error = DesyncError(
                f"the index of rank {world.rank} has the fingerprint {fingerprint}, that of the main rank {wanted}: "
                "the ranks were given other arguments, or a function among them (labels=, weights=, curriculum=) "
                "returns something else on each rank"
            )
    world.raise_together(error)
