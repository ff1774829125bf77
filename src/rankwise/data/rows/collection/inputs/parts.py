"""`Parts`: what an AnnData consists of, in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.columns import Column, columns_of_frame, index_of_frame, open_columns
from rankwise.data.rows.collection.inputs.columnwise import Columnwise
from rankwise.data.rows.datasets import load_anndata
from rankwise.errors import DataError, RankwiseError

__all__ = ["Parts", "parts_in_memory", "parts_of_member", "stored_parts"]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What an AnnData consists of.

    Attributes:
        index: names of the observations.
        columns: columns of the observations.
        vars: tables of variables by modality, the first one under "".
        matrices: by name what is sliced, and which of its rows; None = all.
        raw: whether there is a raw.
    """

    index: Column
    columns: dict[str, Column]
    vars: dict[str, Any]
    matrices: Mapping[str, tuple[Any, IntArray | None]]
    raw: bool = False


def parts_in_memory(adata: Any, label: str) -> Parts:
    """Return the parts of an AnnData, in memory, backed or lazy."""
    found = {"X": adata.X} if adata.X is not None else {}
    for table in ("layers", "obsm"):
        found |= {f"{table}/{name}": held for name, held in getattr(adata, table).items()}
    obs = _in_memory(adata.obs)
    return Parts(
        index=index_of_frame(obs),
        columns=columns_of_frame(obs, label),
        vars={"": _in_memory(adata.var)},
        matrices={name: (held, None) for name, held in found.items()},
        raw=adata.raw is not None,
    )


def stored_parts(group: Any, label: str) -> Parts:
    """Return the parts of an AnnData store, a group of Zarr or HDF5.

    Raises:
        DataError: a table of it cannot be read.
    """
    found = {"X": group["X"]} if _holds(group, "X") else {}
    for table in ("layers", "obsm"):
        if table in group:
            found |= {f"{table}/{name}": group[table][name] for name in sorted(group[table].keys())}
    try:
        index, columns = open_columns(group["obs"], label)
        var = load_anndata().io.read_elem(group["var"])
    except RankwiseError:
        raise
    except Exception as error:  # whatever a file format raises
        raise DataError(f"the tables obs and var of {label} cannot be read: {error}") from error
    matrices = {name: (_sliceable(held), None) for name, held in found.items()}
    return Parts(index, columns, {"": var}, matrices, _holds(group, "raw"))


def parts_of_member(group: Any, label: str) -> Parts:
    """Return the parts of a dataset of a collection, those of further modalities included."""
    first = stored_parts(group, label)
    held = group["uns/mod"] if "uns" in group and "mod" in group["uns"] else {}
    parts = {name: stored_parts(held[name], f"{label}/mod/{name}") for name in sorted(held)}
    matrices = {
        f"mod/{name}/{matrix}": found for name, part in parts.items() for matrix, found in part.matrices.items()
    }
    vars_ = {name: part.vars[""] for name, part in parts.items()}
    return replace(first, vars=first.vars | vars_, matrices={**first.matrices, **matrices})


def _in_memory(frame: Any) -> Any:
    return frame.to_memory() if hasattr(frame, "to_memory") else frame


def _holds(group: Any, name: str) -> bool:
    return name in group and dict(group[name].attrs).get("encoding-type") != "null"


def _sliceable(held: Any) -> Any:
    kind = dict(held.attrs).get("encoding-type")
    if kind == "csc_matrix":
        return Columnwise.stored(held)
    return load_anndata().io.sparse_dataset(held) if kind == "csr_matrix" else held
