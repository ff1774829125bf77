"""What a catalogue contains, in numbers and as text: for `rankwise data index`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from rankwise.data.store.catalogue.lookup import Catalogue
from rankwise.data.store.meta import ArrayMeta, read_meta

__all__ = ["summarize", "text_of"]

_MOST_KINDS = 12  # kinds of arrays that are printed


def summarize(catalogue: Catalogue, *, output: str, written_bytes: int | None) -> dict[str, Any]:
    """Return counts of a catalogue's content, as JSON values.

    Args:
        catalogue: the catalogue.
        output: file to which it was, or would have been, written.
        written_bytes: size of the file; None if it was not written.
    """
    refs = catalogue.images()
    metas = [read_meta(place, nodes=catalogue) for place in catalogue.arrays()]
    names = Counter(ref.name for ref in refs)
    return {
        "roots": list(catalogue.roots),
        "output": output,
        "written_bytes": written_bytes,
        "num_images": sum(ref.kind == "image" for ref in refs),
        "num_plain_arrays": sum(ref.kind == "array" for ref in refs),
        "num_plates": len({ref.plate for ref in refs if ref.plate}),
        "num_wells": len({(ref.plate, ref.well) for ref in refs if ref.well}),
        "num_arrays": len(metas),
        "decoded_bytes": sum(math.prod(meta.shape) * meta.dtype.itemsize for meta in metas),
        "kinds": [{"what": what, "num_arrays": count} for what, count in Counter(map(_kind, metas)).most_common()],
        "same_name": sorted(name for name, count in names.items() if count > 1),
        "bad": [{"place": place, "reason": reason} for place, reason in catalogue.bad.items()],
    }


def text_of(summary: dict[str, Any]) -> str:
    """Return a summary as a few lines."""
    images, arrays, bad = (summary[key] for key in ("num_images", "num_plain_arrays", "bad"))
    parts = f"{summary['num_plates']} plates, {summary['num_wells']} wells"
    size = _amount(summary["decoded_bytes"])
    lines = [
        f"found {images} images and {arrays} plain arrays ({parts}): {summary['num_arrays']} arrays, {size} decoded"
    ]
    lines += [f"  {kind['num_arrays']:>8}  {kind['what']}" for kind in summary["kinds"][:_MOST_KINDS]]
    if len(summary["kinds"]) > _MOST_KINDS:
        lines.append(f"            and {len(summary['kinds']) - _MOST_KINDS} more kinds (--json lists all)")
    if summary["same_name"]:
        lines.append(
            f"{len(summary['same_name'])} names belong to several images, for example {summary['same_name'][0]!r}: "
            "index their parent folder, so that their names differ"
        )
    if bad:
        lines.append(f"{len(bad)} entries could not be read")
    if summary["written_bytes"] is not None:
        lines.append(f"wrote {summary['output']} ({_amount(summary['written_bytes'])})")
    return "\n".join(lines)


def _kind(meta: ArrayMeta) -> str:
    path = "by zarr-python" if meta.codec.kind == "zarr" else "by the fast decoders"
    codec = meta.codec.why if meta.codec.kind == "zarr" else meta.codec.kind
    sharded = "sharded " if meta.sharded else ""
    return f"{sharded}v{meta.zarr_format} {meta.dtype.name}, {codec}: {path}"


def _amount(num_bytes: int) -> str:
    size, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
