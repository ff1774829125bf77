"""Describes a collection in words and numbers."""

from __future__ import annotations

import math
import os
from textwrap import wrap
from typing import Any

from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.datasets.search import MANIFEST, find_datasets
from rankwise.data.rows.matrices.matrix import StoredMatrix, StoredSparse
from rankwise.data.store import BoxReader
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.tree import STORES
from rankwise.errors import RankwiseError


def decode_factor(matrix: StoredMatrix, run: int) -> float:
    """Return decoded elements divided by used ones, for a run of rows that begins at a multiple of its length.

    Padding zeros do not count. If chunk edges of a CSR matrix fall inside rows, a run costs one more chunk, on average,
    than its rows fill, but never more than all chunks.
    """
    run = max(1, min(run, matrix.num_rows))
    if isinstance(matrix, StoredSparse) and matrix.rows_per_chunk is None:
        num_elements, chunk = matrix.data.shape[0], matrix.data.chunks[0]
        if not num_elements:
            return 1.0
        elements = run * num_elements / matrix.num_rows
        stored = -(-num_elements // chunk) * chunk  # the last chunk is decoded whole, too
        return min(elements + chunk, stored) / elements
    if run == matrix.num_rows:
        return 1.0
    chunk = matrix.chunk_rows
    runs = math.lcm(run, chunk) // run
    touched = sum(-(-(number + 1) * run // chunk) - number * run // chunk for number in range(runs))
    return touched * chunk / (runs * run)


_RUNS = (1, 32, 64, 512)
_WORTH = 1.5
_MOST = 5  # number of inputs to list


def describe_rows(uri: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts about the AnnData stores at a URI, from metadata only.

    Raises:
        DataError: there is neither an AnnData store nor a collection.
    """
    node = STORES.node(resolve_place(uri))
    manifest = node.attributes.get(MANIFEST) if node is not None else None
    with BoxReader(threads=1, cache=0) as reader:
        opened = [Dataset(place, reader) for place in find_datasets(uri)]
        datasets: list[dict[str, Any]] = [
            {
                "place": held.place,
                "num_rows": held.num_rows,
                "num_vars": held.num_vars,
                "obs": list(held.obs_columns),
                "matrices": {name: _described(held, name) for name in held.matrices},
                "raw": None if held.raw is None else _described(held, held.raw),
            }
            for held in opened
        ]
    return {
        "uri": os.fspath(uri),
        "num_rows": sum(held["num_rows"] for held in datasets),
        "datasets": datasets,
        "writes": [] if manifest is None else manifest["writes"],
    }


def text_of_rows(facts: dict[str, Any]) -> str:
    """Return the facts as text, with the benefit of a conversion."""
    num = len(facts["datasets"])
    lines = [f"{facts['uri']}: {facts['num_rows']} rows in {num} dataset{'s' * (num != 1)}"]
    before: list[str] = []
    for held in facts["datasets"]:
        lines.append(f"{held['place']}: {held['num_rows']} rows, {held['num_vars']} variables")
        kinds = [f"{name}{_kind(matrix)}" for name, matrix in held["matrices"].items()] + held["obs"]
        kinds += [] if held["raw"] is None else [f"raw {_kind(held['raw'])}"]
        lines += ["  as the one before"] if kinds == before else _lines(held)
        before = kinds
    for write in facts["writes"]:
        sources = ", ".join(f"{source['src_path']} ({source['rows']} rows)" for source in write["sources"][:_MOST])
        sources += f" and {len(write['sources']) - _MOST} more" * (len(write["sources"]) > _MOST)
        lines.append(f"written with seed {write['seed']} from {sources} as {', '.join(write['datasets'])}")
    return "\n".join([*lines, *_advice(facts)])


def _described(held: Dataset, name: str) -> dict[str, Any]:
    try:
        matrix = held.matrix(name)
    except RankwiseError as error:
        return {"unfit": str(error)}
    if isinstance(matrix, StoredSparse):
        kind, array, aligned = "csr", matrix.data, matrix.rows_per_chunk is not None
    else:
        kind, array, aligned = "dense", matrix.array, True
    return {
        "kind": kind,
        "dtype": str(matrix.dtype),
        "row_shape": list(matrix.row_shape),
        "row_bytes": round(matrix.row_bytes, 1),
        "chunk_rows": matrix.chunk_rows,
        "aligned": aligned,
        "sharded": array.sharded,
        "decode_factors": {str(run): round(decode_factor(matrix, run), 2) for run in _RUNS},
    }


def _lines(held: dict[str, Any]) -> list[str]:
    """Describe a dataset in lines for a terminal of 80 columns, except for long names."""
    lines = []
    for name, matrix in held["matrices"].items():
        if "unfit" in matrix:
            lines.append(f"  {name}: {matrix['unfit']}")
            continue
        edges = "on row edges" if matrix["aligned"] else "inside rows"
        files = "sharded" if matrix["sharded"] else "a file each"
        factors = matrix["decode_factors"]
        times = ", ".join(f"{factor:g}" for factor in factors.values())
        lines += [
            f"  {name}: {_kind(matrix)}, {matrix['row_bytes']:g} bytes per row",
            f"    chunks of {matrix['chunk_rows']} rows with edges {edges}, {files}",
            f"    runs of {', '.join(factors)} rows decode {times} times what they hold",
        ]
    if held["raw"] is not None:
        lines += [
            f"  raw/X: {_kind(held['raw'])}, with variables of its own",
            "    read by this name, but not written; to write it as X, pass add_adatas",
            "    load_adata=lambda path: anndata.read_zarr(path).raw.to_adata()",
        ]
    columns = ", ".join(held["obs"]) or "no columns"
    return [*lines, *wrap(f"obs: {columns}", 80, initial_indent="  ", subsequent_indent="    ")]


def _kind(matrix: dict[str, Any]) -> str:
    return str(matrix["unfit"]) if "unfit" in matrix else f"{matrix['kind']} {matrix['dtype']}{matrix['row_shape']}"


def _advice(facts: dict[str, Any]) -> list[str]:
    """Say what `rankwise rows write` would change, if it is worth it."""
    found = [
        (held["place"], name, matrix)
        for held in facts["datasets"]
        for name, matrix in held["matrices"].items()
        if "unfit" in matrix or matrix["decode_factors"]["64"] >= _WORTH
    ]
    if not found:
        factors = [m["decode_factors"]["64"] for one in facts["datasets"] for m in one["matrices"].values()]
        most = max(factors, default=1.0)
        waste = f"runs of 64 rows decode at most {most:g} times what they hold"
        return [f"{waste}: a conversion would buy {'nothing' if most <= 1 else 'little'} but a new order"]
    words = [
        f"  {place}/{name}: readable by row"
        if "unfit" in matrix
        else f"  {place}/{name}: {matrix['decode_factors']['64']:g} times less to decode for runs of 64 rows"
        for place, name, matrix in found[:10]
    ]
    return ["`rankwise rows write` (shuffled, 64 rows per chunk, edges on row edges) would buy:", *words]
