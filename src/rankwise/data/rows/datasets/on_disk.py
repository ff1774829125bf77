"""`Dataset`: one AnnData store, and the checksums of its arrays; `AnyDataset`: one on disk or in memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rankwise.data.rows.datasets.in_memory import MemoryDataset
from rankwise.data.rows.datasets.search import MANIFEST, MEMBER, known_columns, load_anndata, open_group, stored_name
from rankwise.data.rows.matrices.matrix import StoredMatrix, open_matrix
from rankwise.data.store import BoxReader
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.tree import STORES
from rankwise.errors import ConfigError, DataError


def array_checksums(folder: Path, known: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
    """Return a checksum (BLAKE2b, 128 bits) of each array below a folder, by the name of the array.

    It covers the names and checksums of the array's files; the `known` ones, by array and path in it, are not read.
    """
    found = {}
    for document in sorted(folder.rglob("zarr.json")):
        place = document.parent
        if json.loads(document.read_bytes()).get("node_type") != "array":
            continue
        name = place.relative_to(folder).as_posix()
        held = (known or {}).get(name, {})
        whole = hashlib.blake2b(digest_size=16)
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            inside = path.relative_to(place).as_posix()
            digest = held.get(inside)
            if not digest:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16)).hexdigest()
            whole.update(f"{inside} {digest}\n".encode())
        found[name] = whole.hexdigest()
    return found


def check_files(group: Any, names: Iterable[str]) -> None:
    """Refuse elements of a collection's dataset whose files were lost since they were written.

    Zarr reads a chunk without a file as the fill value: every code of a category would be 0. A chunk of zeros has no
    file either, so for a missing file the manifest's checksum says whether it ever existed. Stores without a manifest
    cannot tell. Only local folders are checked.
    """
    root = getattr(getattr(group, "store", None), "root", None)
    if root is None:
        return
    folder = Path(root) / group.path
    for name in names:
        looked = {document.parent: _lacking(document) for document in sorted((folder / name).rglob("zarr.json"))}
        missing = {place: lacking for place, lacking in looked.items() if lacking is not None}
        known = _written(folder) if missing else None
        for place, lacking in missing.items():
            if known is None or array_checksums(place).get(".") == known[1].get(place.relative_to(known[0]).as_posix()):
                continue
            raise DataError(
                f"{lacking} is missing: {name!r} would be read as if it held only zeros there, but the manifest "
                f"of the collection says that it does not. Copy {known[0]} completely or write it again"
            )


def _lacking(document: Path) -> Path | None:
    """Return the first missing chunk file of an array, by its chunk grid."""
    facts = json.loads(document.read_bytes())
    if facts.get("node_type") != "array" or facts["chunk_grid"]["name"] != "regular":
        return None
    extents = facts["chunk_grid"]["configuration"]["chunk_shape"]
    counts = [-(-size // extent) for size, extent in zip(facts["shape"], extents, strict=True)]
    keys = ("/".join(map(str, ("c", *coords))) for coords in product(*map(range, counts)))
    return next((document.parent / key for key in keys if not (document.parent / key).exists()), None)


def _written(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """Return the dataset that contains a folder, and its arrays' checksums; None outside of rankwise collections."""
    for place in (folder, *folder.parents):
        document = place.parent / "zarr.json"
        if MEMBER.fullmatch(place.name) and document.exists():
            manifest = json.loads(document.read_bytes()).get("attributes", {}).get(MANIFEST, {})
            entry = manifest.get("datasets", {}).get(place.name)
            return None if entry is None else (place, entry["arrays"])
    return None


if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("layers", "obsm")
_MATRIX = re.compile(r"(mod/[^/]+/)?(X|raw/X|(layers|obsm)/.+)")  # a store may not be listed: names are checked by form


class Dataset:
    """One AnnData store on disk; opening it reads metadata only.

    Raises:
        DataError: there is no AnnData store, or it has no table of observations.
    """

    def __init__(self, uri: str | os.PathLike[str], reader: BoxReader) -> None:
        self.place = resolve_place(uri)
        self._reader = reader
        node = STORES.node(self.place)
        if node is None:
            raise STORES.missing(self.place)
        if node.attributes.get("encoding-type") != "anndata":
            raise DataError(f"{self.place} is not an AnnData store")
        self._obs = self._table("obs")
        self._var = self._table("var")

    def __repr__(self) -> str:
        return f"Dataset({self.place}: {self.num_rows} rows)"

    @property
    def origin(self) -> str:
        """The place from which these rows can be opened again."""
        return self.place

    @cached_property
    def num_rows(self) -> int:
        """Number of observations, as of the first access."""
        return self._length("obs", self._obs)

    @property
    def num_vars(self) -> int:
        """Variables, such as genes: columns of X and of the layers."""
        return self._length("var", self._var)

    @property
    def obs_columns(self) -> tuple[str, ...]:
        """Columns of the table of observations, without its index."""
        return tuple(self._obs["column-order"])

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of matrices with readable rows: "X", "layers/counts", "obsm/X_pca", "mod/protein/X", ..."""
        found: list[str] = []
        for first in ("", *(f"{name}/" for name in self._inside("mod"))):
            found += [f"{first}X"] if STORES.node(self._at(f"{first}X")) is not None else []
            found += [name for table in _TABLES for name in self._inside(f"{first}{table}")]
        return tuple(found)

    @property
    def has_x(self) -> bool:
        """Whether there is an X, even one whose rows cannot be read; anndata writes a missing X as null."""
        node = STORES.node(self._at("X"))
        return node is not None and node.attributes.get("encoding-type") != "null"

    @property
    def raw(self) -> str | None:
        """Name of the matrix of `raw`, which has its own variables and is not in `matrices`; None = there is none."""
        return "raw/X" if STORES.node(self._at("raw/X")) is not None else None

    def _inside(self, name: str) -> list[str]:
        group = STORES.node(self._at(name))
        return [] if group is None else [f"{name}/{held}" for held in STORES.inside(group.place, group)]

    def _at(self, name: str) -> str:
        """Return the path of an element in the store; modalities are where collections put them, or at the top."""
        place = f"{self.place}/{stored_name(name)}"
        return place if STORES.node(place) is not None else f"{self.place}/{name}"

    def matrix(self, name: str = "X") -> StoredMatrix:
        """Open a matrix.

        Raises:
            ConfigError: there is no matrix of this name.
            DataError: it is damaged, or has another number of rows than the table of observations.
        """
        if _MATRIX.fullmatch(name) is None or STORES.node(self._at(name)) is None:
            held = f"rows can be read from {', '.join(self.matrices)}" if self.matrices else "it holds no matrix at all"
            raise ConfigError(f"{self.place} has no {name!r}; {held}")
        opened = open_matrix(self._at(name), self._reader)
        if opened.num_rows != self.num_rows:
            raise DataError(
                f"{opened.place} has {opened.num_rows} rows, but the table of observations {self.num_rows}: write the "
                "store again"
            )
        return opened

    def obs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read columns of the table of observations, with its index; None = all.

        Raises:
            ConfigError: there is no such column.
            DataError: a column cannot be read.
        """
        import pandas as pd

        wanted = known_columns(columns, self.obs_columns, self.place)
        index, *values = self._read("obs", [self._obs["_index"], *wanted])
        return pd.DataFrame(dict(zip(wanted, values, strict=True)), index=pd.Index(index))

    def column(self, name: str) -> Any:
        """Read one column of the table of observations: a NumPy or pandas array, without the index; see `obs`."""
        known_columns((name,), self.obs_columns, self.place)
        return self._read("obs", [name])[0]

    def var_names(self, modality: str = "") -> tuple[str, ...]:
        """Read the names of the variables; for a modality (for example "mod/protein") those of its own table.

        Raises:
            DataError: there is no such table, or it cannot be read.
        """
        name = f"{modality}/var" if modality else "var"
        return tuple(map(str, self._read(name, [self._table(name)["_index"]])[0].tolist()))

    def _table(self, name: str) -> dict[str, Any]:
        node = STORES.node(self._at(name))
        if node is None or node.attributes.get("encoding-type") != "dataframe":
            raise DataError(f"the AnnData store {self.place} has no table {name!r}: write it again")
        return {"column-order": [], "_index": "_index", **node.attributes}

    def _length(self, name: str, table: dict[str, Any]) -> int:
        place = f"{self.place}/{name}/{table['_index']}"
        node = STORES.node(place)
        if node is not None and node.kind == "group":  # nullable text is a group of values and a mask
            node = STORES.node(f"{place}/values")
        if node is None or not node.document.get("shape"):
            raise DataError(f"the table {self.place}/{name} lacks its index {table['_index']!r}: write it again")
        return int(node.document["shape"][0])

    def _read(self, table: str, names: Sequence[str]) -> list[Any]:
        group, found = open_group(self._at(table)), []
        check_files(group, names)
        for name in names:
            try:
                found.append(_element(group[name]))
            except Exception as error:  # any error of a codec
                raise DataError(f"{self._at(table)}/{name} cannot be read: {error}") from error
        return found


def _element(held: Any) -> Any:
    """Read an element as anndata does; its import takes a second, so the usual columns are read without it."""
    encoding = (held.attrs.get("encoding-type"), held.attrs.get("encoding-version"))
    if encoding in (("array", "0.2.0"), ("string-array", "0.2.0")):
        return held[()]
    if encoding == ("categorical", "0.2.0"):
        import pandas as pd

        codes, categories = _element(held["codes"]), _element(held["categories"])
        return pd.Categorical.from_codes(codes, categories, ordered=bool(held.attrs["ordered"]))
    return load_anndata().io.read_elem(held)


AnyDataset: TypeAlias = Dataset | MemoryDataset


def open_dataset(place: str | MemoryDataset, reader: BoxReader) -> AnyDataset:
    """Open the dataset at a place; return a dataset in memory unchanged."""
    return place if isinstance(place, MemoryDataset) else Dataset(place, reader)
