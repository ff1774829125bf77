"""Names of matrices of further modalities, and where in an AnnData store they lie."""

from __future__ import annotations

__all__ = ["split_modality", "stored_name"]


def split_modality(name: str) -> tuple[str, str]:
    """Split "mod/protein/X" into ("protein", "X"); the first modality is ""."""
    if not name.startswith("mod/"):
        return "", name
    _, modality, inner = name.split("/", 2)
    return modality, inner


def stored_name(name: str) -> str:
    """Return the place of "mod", a modality or a matrix in the store: further modalities are AnnData inside uns."""
    return f"uns/{name}" if name.partition("/")[0] == "mod" else name
