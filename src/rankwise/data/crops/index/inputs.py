"""From whatever a user calls his images to `CropImage`s."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from rankwise.data.crops.index.image import CropImage, Level, plain_level
from rankwise.data.store.meta import ArrayMeta, read_meta
from rankwise.errors import ConfigError

__all__ = ["Images", "gather_images"]

Images: TypeAlias = Any


def gather_images(given: Images, *, root: str | None = None) -> tuple[CropImage, ...]:
    """Return the images of an index.

    Args:
        given: a URI, an `ArrayMeta`, a mapping of parts to either (one image), a `CropImage`, or several of these.
        root: folder or URL below which the paths of arrays are their names; None = the last part of the path.

    Raises:
        ConfigError: there are none, or one is something else.
        DataError: there is no array at a URI.
    """
    found = tuple(_images(given, root))
    if not found:
        raise ConfigError("an index wants at least one image, got none")
    return found


def _images(given: Images, root: str | None) -> Iterable[CropImage]:
    if isinstance(given, CropImage):
        yield given
    elif isinstance(given, str | os.PathLike | ArrayMeta | Level):
        yield _single({"image": given}, root)
    elif isinstance(given, Mapping):
        yield _single(given, root)
    elif isinstance(given, Iterable):
        for one in given:
            yield from _images(one, root)
    else:
        raise ConfigError(
            "images are URIs, array metadata, mappings of parts to those, or several of them; got a "
            f"{type(given).__name__}"
        )


def _single(parts: Mapping[str, Any], root: str | None) -> CropImage:
    """One image out of arrays by part."""
    if not parts:
        raise ConfigError('an image wants at least one array, such as {"image": "volume.zarr"}; got none')
    levels = {name: _levels(part) for name, part in parts.items()}
    first = next(iter(levels.values()))[0]
    return CropImage(name=_name(first.array.place, root), parts=levels)


def _levels(part: Any) -> tuple[Level, ...]:
    if isinstance(part, Level):
        return (part,)
    if isinstance(part, ArrayMeta):
        return (plain_level(part),)
    if isinstance(part, str | os.PathLike):
        return (plain_level(read_meta(part)),)
    if isinstance(part, list | tuple) and part:
        return tuple(level for one in part for level in _levels(one))
    raise ConfigError(
        f"a part of an image is a URI, array metadata, a level, or a list of levels, the finest first; got {part!r:.80}"
    )


def _name(place: str, root: str | None) -> str:
    path = PurePosixPath(place)
    if root is None:
        return path.name
    top = root if "://" in root else str(Path(root).expanduser().absolute())
    try:
        return str(path.relative_to(top))
    except ValueError:
        raise ConfigError(f"{place} does not lie below root={root}") from None
