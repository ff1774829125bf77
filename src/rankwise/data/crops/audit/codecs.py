"""The codec of an array by the name that people and the table of speeds use: "zstd-3", "blosc-lz4", "none", "gzip"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.data.store.meta import ArrayMeta

__all__ = ["codec_name"]


def codec_name(meta: ArrayMeta) -> str:
    """Return the name: that of the compressor, for blosc the one inside, for zstd with its level where it is known."""
    if meta.codec.kind == "raw":
        return "none"
    found = [_name(codec) for codec in _compressors(meta.document)]
    names = [name for name in found if name]
    return "+".join(names) or meta.codec.why or meta.codec.kind


def _compressors(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What follows the array-to-bytes codec, innermost chunks first; version 2 keeps one compressor."""
    if "compressor" in document:
        one = document["compressor"]
        return [] if one is None else [{"name": one.get("id", ""), "configuration": one}]
    codecs = list(document.get("codecs") or [])
    for codec in codecs:
        if isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed":
            return _compressors(codec.get("configuration", {}))
    return [codec for codec in codecs if isinstance(codec, Mapping)]


def _name(codec: Mapping[str, Any]) -> str:
    name = str(codec.get("name", "")).removeprefix("numcodecs.")
    settings = codec.get("configuration") or {}
    if name == "blosc":
        return f"blosc-{settings.get('cname', 'lz4')}"
    if name == "zstd":
        return f"zstd-{settings['level']}" if "level" in settings else "zstd"
    return "" if name in {"bytes", "crc32c", "vlen-utf8"} else name
