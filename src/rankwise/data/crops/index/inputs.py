"""From whatever a user calls his images to `CropImage`s."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from rankwise.data.crops.index.image import CropImage, Level, image_levels, plain_level
from rankwise.data.store.meta import ArrayMeta, Catalogue, Image, ImageRef, iter_images, open_image
from rankwise.errors import ConfigError

__all__ = ["Images", "gather_images"]

# URIs, catalogues, images, mappings of parts to those, or several of them: too loose a type to spell out.
Images: TypeAlias = Any


def gather_images(given: Images, *, labels: Collection[str] = (), root: str | None = None) -> tuple[CropImage, ...]:
    """Return the images of an index.

    Args:
        given: what `CropIndex` takes.
        labels: label images that are wanted as parts, where images have any.
        root: folder or URL below which the paths of arrays are their names; None = names as they are found.

    Raises:
        ConfigError: there are none, or one is something else.
        DataError: there is no image at a URI, or it is damaged.
    """
    found = tuple(_Gatherer(labels, root).images(given))
    if not found:
        raise ConfigError("an index wants at least one image, got none")
    return found


class _Gatherer:
    def __init__(self, labels: Collection[str], root: str | None) -> None:
        self._labels = labels
        self._root = root

    def images(self, given: Images) -> Iterator[CropImage]:
        if isinstance(given, CropImage):
            yield given
        elif isinstance(given, ImageRef):
            yield self._of_ref(given)
        elif isinstance(given, Catalogue):
            yield from map(self._of_ref, given.images())
        elif isinstance(given, str | os.PathLike):
            yield from self._at(given)
        elif isinstance(given, ArrayMeta | Level | Image):
            yield self._of_parts({"image": given})
        elif isinstance(given, Mapping):
            yield self._of_parts(given)
        elif isinstance(given, Iterable):
            for one in given:
                yield from self.images(one)
        else:
            raise ConfigError(
                "images are URIs, a catalogue, opened images or arrays, mappings of parts to those, or several of "
                f"them; got a {type(given).__name__}"
            )

    def _at(self, uri: str | os.PathLike[str]) -> Iterator[CropImage]:
        """Everything below a URI; a file is a catalogue."""
        if "://" not in os.fspath(uri) and Path(uri).is_file():
            yield from self.images(Catalogue.load(uri))
        else:
            yield from map(self._of_ref, iter_images(uri))

    def _of_ref(self, ref: ImageRef) -> CropImage:
        image = ref.open()
        return CropImage(
            name=ref.name if self._root is None else self._named(ref.place),
            parts={"image": _levels(image), **self._label_parts(image)},
            plate=ref.plate,
            well=ref.well,
            meta={"field": ref.field, "acquisition": ref.acquisition},
        )

    def _of_parts(self, parts: Mapping[str, Any]) -> CropImage:
        """One image out of arrays or images by part."""
        if not parts:
            raise ConfigError('an image wants at least one array, such as {"image": "volume.zarr"}; got none')
        levels = {name: _levels(part) for name, part in parts.items()}
        first = next(iter(parts.values()))
        place = first.place if isinstance(first, Image) else next(iter(levels.values()))[0].array.place
        return CropImage(name=self._named(_store(first) or place), parts=levels)

    def _label_parts(self, image: Image) -> dict[str, tuple[Level, ...]]:
        if not self._labels or not image.levels[0].path:
            return {}
        return {name: _levels(image.label(name)) for name in image.labels() if name in self._labels}

    def _named(self, place: str) -> str:
        path = PurePosixPath(place)
        if self._root is None:
            return path.name
        top = self._root if "://" in self._root else str(Path(self._root).expanduser().absolute())
        try:
            return str(path.relative_to(top))
        except ValueError:
            raise ConfigError(f"{place} does not lie below root={self._root}") from None


def _store(part: Any) -> str:
    return (
        str(part) if isinstance(part, str) and "://" in part else str(Path(part).absolute()) if _is_path(part) else ""
    )


def _is_path(part: Any) -> bool:
    return isinstance(part, str | os.PathLike)


def _levels(part: Any) -> tuple[Level, ...]:
    if isinstance(part, Level):
        return (part,)
    if isinstance(part, ArrayMeta):
        return (plain_level(part),)
    if isinstance(part, Image):
        return image_levels(part)
    if _is_path(part):
        return image_levels(open_image(part))
    if isinstance(part, list | tuple) and part:
        return tuple(level for one in part for level in _levels(one))
    raise ConfigError(
        "a part of an image is a URI, an array, an image, a level, or a list of levels, the finest first; got "
        f"{part!r:.80}"
    )
