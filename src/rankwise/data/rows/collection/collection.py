"""`DatasetCollection`: datasets of shuffled rows in one Zarr group."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankwise.data.order import Groups
from rankwise.data.rows.chosen import NamedRows
from rankwise.data.rows.collection.journal import explain_disk_errors, listed_names, read_manifest
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.datasets.search import COLLECTION_TYPE, find_datasets, load_anndata
from rankwise.data.rows.obs import name_list, read_tables
from rankwise.data.rows.ordered import open_rows
from rankwise.data.rows.output.sharded import refuse_file
from rankwise.data.rows.source import RowSource
from rankwise.data.store import BoxReader, load_zarr
from rankwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from rankwise._process.place import Place
    from rankwise.world.value import World

_MODES = ("a", "r", "r+")


class DatasetCollection:
    """A collection: AnnData stores `dataset_0`, `dataset_1`, ... of rows in random order, in one Zarr v3 group.

    group: the group, or its path.
    mode: "a" creates it if it does not exist, "r+" and "r" require it; "r" is read-only.
    is_collection_h5ad: collections of h5ad files are not supported: True raises an error.

    Raises:
        ConfigError: an argument is invalid, or the group is not on a local file system or not Zarr v3.
        DataError: there is no group.
    """

    def __init__(self, group: Any, *, mode: str = "a", is_collection_h5ad: bool = False) -> None:
        if is_collection_h5ad:
            raise ConfigError(
                "collections of h5ad files are not supported; h5ad files are fine as inputs of a Zarr one"
            )
        if mode not in _MODES:
            raise ConfigError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        self.path, read_only = _open_folder(group, mode)
        self._mode = "r" if read_only else mode

    def __repr__(self) -> str:
        return f"DatasetCollection({str(self.path)!r}: {len(listed_names(self.path))} datasets)"

    def __iter__(self) -> Iterator[Any]:
        zarr = load_zarr()
        for name in listed_names(self.path):
            yield zarr.open_group(str(self.path / name), mode="r" if self._mode == "r" else "r+")

    @property
    def is_empty(self) -> bool:
        """Whether there are no datasets."""
        group = load_zarr().open_group(str(self.path), mode="r")
        return group.attrs.get("encoding-type") != COLLECTION_TYPE or not listed_names(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """What was written: rows and checksums of every dataset; sources, parameters and seed of every write."""
        return read_manifest(self.path)

    def obs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the concatenated observations of all datasets.

        Args:
            columns: names; None = all. A column is missing for datasets that lack it. Different categories
                of datasets are merged.

        Raises:
            ConfigError: no dataset has a column with that name.
        """
        import pandas as pd

        names, columns = listed_names(self.path), None if columns is None else name_list(columns, "columns")
        if not names or columns == []:
            return pd.DataFrame()
        with BoxReader(cache=0) as reader:
            return read_tables([Dataset(str(self.path / name), reader) for name in names], columns)

    def split(
        self,
        *,
        by: str,
        fractions: Mapping[str, float] | Sequence[float] | None = None,
        groups: Groups | None = None,
        exact: bool = False,
        stratify: str | None = None,
        seed: int = 1889,
    ) -> Any:
        """Return parts of the rows for `Order` and `Loader`, the same on every rank; see `RowSource.split`.

        Rows with equal values of a column stay together. A hash decides their part: new data do not move them.

        Args:
            by: column of obs, for example "donor"; "row" = each row by its own number.
            fractions: sizes of the parts, ``{"train": 0.8, "val": 0.2}`` or ``(0.8, 0.2)``.
            groups: values of the column for a part, ``{"val": ["donor 3"]}``.
            exact: use exact counts of groups instead of the hash; useful for few groups.
            stratify: a column; each part gets its fraction of each of its values.
            seed: another seed gives another split.

        Returns:
            `RowSource`s, in a dict by name, or in a tuple for a list of fractions.

        Raises:
            ConfigError: there is no such column or group, a row has no value in it, or a part is empty.
        """
        whole: Any = open_rows(self)
        return whole.split(by=by, fractions=fractions, groups=groups, exact=exact, stratify=stratify, seed=seed)

    def subset(self, rows: Any) -> RowSource:
        """Return some of the rows for `Order` and `Loader`.

        Args:
            rows: a mask over all rows (for example from `obs`), or row numbers in any order; the order is ignored.

        Raises:
            ConfigError: there are no such rows.
        """
        return open_rows(self).subset(rows)

    @property
    def stored_rows(self) -> NamedRows:
        """All rows, for ``RowSource(collection)``."""
        return NamedRows(name=str(self.path), places=find_datasets(self.path))

    def add_adatas(
        self,
        adata_paths: Iterable[Any],
        *,
        load_adata: Callable[[Any], Any] | None = None,
        groupby: str | Iterable[str] | None = None,
        var_subset: Iterable[str] | None = None,
        n_obs_per_chunk: int = 64,
        shard_size: int | str = "1GB",
        zarr_compressor: Iterable[Any] | None = None,
        h5ad_compressor: str | None = "gzip",
        dataset_size: int | str = "20GB",
        shuffle_chunk_size: int = 1,
        shuffle: bool = True,
        rng: np.random.Generator | int | None = None,
        merge: str | None = None,
        matrices: Sequence[str] | None = None,
        align_rows: bool = True,
        memory_budget: int | str = "2GB",
        reshuffle: bool = False,
        progress: bool | None = None,
        modalities: Sequence[str] | None = None,
        join: Literal["outer", "inner"] = "outer",
        world: World | Place | None = None,
    ) -> DatasetCollection:
        """Write the rows of inputs as new datasets in random order, beside existing ones.

        Two passes over the disk put the rows of all inputs into one uniformly random order, in bounded memory. If
        killed at any moment, the collection is as it was; repeating the call resumes the work. The columns `src_path`
        and `src_row` of the new rows name their source. Existing datasets do not change.

        Args:
            adata_paths: paths of h5ad files and Zarr stores, groups of them, AnnData in memory, or other collections;
                a single input is allowed.
            load_adata: turns a path into an AnnData, to select or change its content; None = all of it.
            groupby: columns of obs by which the rows of each dataset are sorted after the shuffle.
            var_subset: names of variables to take; None = all of all inputs. A collection that is not empty keeps its
                variables.
            n_obs_per_chunk: rows of a chunk.
            shard_size: of a file: rows (1000 or "1000"), or decoded bytes as text with a unit, for example "1GB".
            zarr_compressor: Zarr codecs; None = Blosc with lz4 at level 3, byte shuffle and blocks of 64 KiB.
            h5ad_compressor: ignored, because collections are Zarr.
            dataset_size: most rows of a dataset (250 or "250"), or its decoded bytes as text with a unit, "250MB".
            shuffle_chunk_size: 1 = a uniform shuffle of all rows; n > 1 = runs of n input rows stay in one
                dataset, as in annbatch, and are mixed inside it.
            shuffle: False keeps the order of the inputs.
            rng: generator or seed of the shuffle; None = a fresh one. The manifest contains the seed that was drawn.
            merge: how to combine columns of var, as in anndata.concat.
            matrices: names of matrices to write, like ["X", "layers/counts", "obsm/X_pca"]; None = those in all inputs.
            align_rows: align the chunk edges of CSR matrices to row edges; see `write_sharded`.
            memory_budget: memory of one rank for rows in transit, at least "1MB".
            reshuffle: also rewrite existing datasets, in one order with the new rows.
            progress: show rate and time left; None = on a terminal.
            modalities: names of MuData modalities. The first one is the AnnData of each dataset; matrices of the others
                have names like "mod/protein/X". Rows are the observations that all modalities have.
            join: for inputs with different variables: "outer" takes the variables of any input and fills the rows of
                the others; "inner" takes the variables of all inputs. The result is logged. A collection that is not
                empty keeps its variables.
            world: the ranks that write together. Each makes this call; they share the work, and the files are identical
                to those of one rank. Without a process group, a `Place` from the launcher's variables is enough: the
                ranks then meet at MASTER_ADDR and MASTER_PORT, without torch. None = the process group, if there is
                one.

        Raises:
            ConfigError: an argument is invalid, the inputs do not fit together, or the collection is read-only.
            DataError: an input cannot be read, or another job writes this collection.
            DesyncError: another rank failed or has ended.
            WorldError: the ranks of a place do not find each other.
        """
        if self._mode == "r":
            raise ConfigError(f"{self.path} was opened read-only (mode='r'): open it with mode='a' to add data")
        from rankwise.data.rows.collection import writer  # reading does not import the code for writing

        del h5ad_compressor
        options = writer.WriteOptions(
            form=writer.MatrixFormat(
                n_obs_per_chunk=n_obs_per_chunk,
                shard_size=shard_size,
                compressors=writer.codecs_of(zarr_compressor, "zarr_compressor"),
                align_rows=align_rows,
            ),
            groupby=() if groupby is None else (groupby,) if isinstance(groupby, str) else tuple(groupby),
            dataset_size=dataset_size,
            shuffle_chunk_size=shuffle_chunk_size,
            shuffle=shuffle,
            memory_budget=memory_budget,
            reshuffle=reshuffle,
            matrices=None if matrices is None else name_list(matrices, "matrices"),
            modalities=[] if modalities is None else name_list(modalities, "modalities"),
            var_subset=None if var_subset is None else [str(name) for name in name_list(var_subset, "var_subset")],
            merge=merge,
            join=join,
            load_adata=load_adata,
        )
        sources = [s.path if isinstance(s, DatasetCollection) else s for s in writer.listed(adata_paths)]
        writer.write(self.path, sources, options, world=world, rng=rng, progress=progress)
        return self

    def tables_of_variables(self) -> dict[str, Any]:
        """Read the tables of variables of the first dataset, by modality; the first one is ""."""
        read, group = load_anndata().io.read_elem, next(iter(self))
        others = group["uns/mod"] if "uns" in group and "mod" in group["uns"] else {}
        return {"": read(group["var"])} | {name: read(others[name]["var"]) for name in sorted(others)}


def _open_folder(group: Any, mode: str) -> tuple[Path, bool]:
    """Return the folder of a collection as an absolute path, and whether it is read-only.

    Raises:
        ConfigError: it is not a Zarr v3 group on a local file system, or it is not a collection.
        DataError: there is no group.
    """
    if isinstance(group, (str, os.PathLike)):
        place = os.fspath(group)
        if "://" in place and not place.startswith("file://"):
            raise ConfigError(_not_local(place))
        group = _open(Path(place.removeprefix("file://")), mode)
    if not hasattr(group, "store_path"):
        raise ConfigError(f"a collection needs a path or a Zarr group, got {type(group).__name__}")
    kind = dict(group.attrs).get("encoding-type")
    if kind not in {None, COLLECTION_TYPE}:
        raise ConfigError(
            f"{group.store_path} is a store of the type {kind!r}, not a collection: give the collection a separate "
            "path and pass the store as an input of add_adatas (or unchanged to a Loader)"
        )
    if group.metadata.zarr_format != 3:
        raise ConfigError(f"a collection needs a Zarr v3 group, got v{group.metadata.zarr_format}: choose a new path")
    root = getattr(group.store, "root", None)
    if root is None:
        raise ConfigError(_not_local(group.store))
    return (Path(root) / group.path).absolute(), bool(group.store.read_only)  # the working directory may change


def _open(path: Path, mode: str) -> Any:
    if path.suffix != ".zarr":
        warnings.warn(f"names of collections must end in .zarr, got {path}", stacklevel=4)
    refuse_file(path, "a collection", " (a file is an input of add_adatas)")
    if mode == "a" and path.is_symlink() and not path.exists():
        raise ConfigError(f"{path} is a link to {path.readlink()}, which does not exist, but a collection is a folder")
    if mode != "a" and not path.is_dir():
        raise DataError(f"there is no collection at {path}; mode={mode!r} does not create one, mode='a' does")
    zarr = load_zarr()
    if mode == "a" and not any((path / name).exists() for name in ("zarr.json", ".zgroup")):
        # another rank may be creating it right now
        with contextlib.suppress(zarr.errors.ContainsGroupError), explain_disk_errors(path):
            return zarr.create_group(str(path), zarr_format=3)
    try:
        return zarr.open_group(str(path), mode="r" if mode == "r" else "r+")
    except (zarr.errors.ContainsArrayError, FileNotFoundError) as error:
        raise DataError(f"{path} is not a Zarr group, so not a collection: choose another path ({error})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}/zarr.json is not JSON ({error}); it is damaged or incompletely written") from error


def _not_local(place: Any) -> str:
    return (
        f"collections are written and verified in folders of a local file system, got {place}: write to a folder and "
        "copy it there unchanged. To read from a URL pass the URL itself: Loader(URL, ...), "
        "Order(URL, ...) or RowSource(URL)"
    )
