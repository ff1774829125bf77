"""The files and names that annbatch's pages take for granted: small, made here, with rows that say who they are."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from rankwise.data import rows
from rankwise.data.rows import DatasetCollection, Loader
from rankwise.data.rows.samplers import RandomSampler, SequentialSampler

SIZES = (300, 200, 100)
NUM_GENES = 40
KINDS = ["B", "NK", "T"]


def cells(number):
    """So many cells whose first gene counts their number; a layer of twice as much, and `raw` of what was counted."""
    rng = np.random.default_rng(number)
    counts = rng.poisson(0.3, (SIZES[number], NUM_GENES)).astype("float32")
    counts[:, 0] = np.arange(1, SIZES[number] + 1) + 1000 * number
    columns = {"cell_type": pd.Categorical(rng.choice(KINDS, SIZES[number]), categories=KINDS), "who": counts[:, 0]}
    columns["label"] = columns["cell_type"].astype(str)
    obs = pd.DataFrame(columns, index=[f"{number}-{k}" for k in range(SIZES[number])])
    made = ad.AnnData(sp.csr_matrix(counts), obs=obs, var=pd.DataFrame(index=[f"gene_{k}" for k in range(NUM_GENES)]))
    made.layers["counts"] = made.X * 2
    return made


def everyone(num_files):
    """The numbers of all cells of the first files."""
    return sorted(who for number in range(num_files) for who in cells(number).obs["who"].tolist())


def write_cells(*paths):
    for number, path in enumerate(paths):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        cells(number).write_h5ad(path)


def grouped_collection(place, column="cell_type"):
    """A collection whose datasets are sorted by class, which samplers of classes want."""
    parts = [cells(number) for number in range(2)]
    for part in parts:
        part.obs = part.obs.rename(columns={"cell_type": column})
    return DatasetCollection(place).add_adatas(parts, groupby=column, rng=0)


def prepare(page):
    """Make what a page wants, in the current folder; return the names that it uses and does not define."""
    made = PAGES.get(page)
    return made() if made else {}


def readme():
    write_cells("path/to/your/file1.h5ad", "path/to/your/file2.h5ad")
    return {"some_subset_of_columns_useful_for_training": ["cell_type", "who"]}


def walkthrough():
    write_cells("path/to/your/file1.h5ad", "path/to/your/file2.h5ad")
    return {"DatasetCollection": DatasetCollection, "Loader": Loader, "RandomSampler": RandomSampler}


def faq():
    return {"Loader": Loader, "RandomSampler": RandomSampler, "SequentialSampler": SequentialSampler}


def preshuffling():
    """Where the package is not installed that reads HDF5 files as Zarr stores, matrices are copied into such."""
    write_cells("path_to_anndatas/file1.h5ad", "path_to_anndatas/file2.h5ad")
    if find_spec("virtualizarr") is None:
        add_module("virtualizarr.parsers", HDFParser=CopyingParser)
        add_module("obspec_utils.registry", ObjectStoreRegistry=dict)
    return {"annbatch": rows}


class CopyingParser:
    """In the place of `virtualizarr.parsers.HDFParser`."""

    def __init__(self, group):
        self.group = group

    def __call__(self, url, registry):
        import h5py
        import zarr

        path = url.removeprefix("file://").rstrip("/")
        place = Path(path).absolute().with_suffix(".copied.zarr")
        with h5py.File(path) as held:
            matrix = ad.io.read_elem(held[self.group])
        ad.io.write_elem(zarr.open_group(place, mode="w"), "/", matrix)
        return zarr.storage.LocalStore(place)


def add_module(name, **members):
    """Let `from name import members` work."""
    package, _, inner = name.partition(".")
    sys.modules[package] = ModuleType(package)
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members)
    setattr(sys.modules[package], inner, sys.modules[name])


def images():
    """Example files of scPortrait: 30 cells each, five channels of 128 x 128."""
    pixels = np.random.default_rng(0).random((2, 30, 5, 128, 128), dtype="float32").astype("float16")
    paths = [Path(f"{name}_small.h5sc").absolute() for name in ("stimulated", "unstimulated")]
    for path, stack in zip(paths, pixels, strict=True):
        obs = pd.DataFrame({"number": range(30)}, index=list(map(str, range(30))))
        ad.AnnData(obs=obs, obsm={"single_cell_images": stack}).write_h5ad(path)
    add_module("scportrait.data", autophagosome_h5sc=lambda: paths)
    return {"made": pixels}


def sparse_rows(num_rows, num_columns, per_row, seed):
    """Row n holds n + 1 in column 0, and ones in one column of each of `per_row - 1` equal ranges behind it."""
    rng, width = np.random.default_rng(seed), num_columns // per_row
    columns = np.arange(per_row) * width + rng.integers(0, width, (num_rows, per_row))
    columns[:, 0] = 0
    values = np.ones((num_rows, per_row), dtype="float32")
    values[:, 0] += np.arange(num_rows)
    edges = np.arange(num_rows + 1) * per_row
    return sp.csr_matrix((values.ravel(), columns.ravel(), edges), shape=(num_rows, num_columns))


def rare_variants(num_people, num_variants):
    """Genotypes of which 0.26 % are another allele."""
    made = sparse_rows(num_people, num_variants, round(0.0026 * num_variants), seed=0)
    made.data[:] = 1 + np.arange(made.nnz) % 2
    return made.astype("int8")


def genetics():
    """The writer and reader of genotypes of cellink, with people and variants as many as are asked for."""

    def stream_pgen_to_zarr(source, place, *, sparse, sparse_format, max_variants, chunk_samples, chunk_variants):
        people = pd.DataFrame({"iid": [f"HG{k:05}" for k in range(chunk_samples)]})
        variants = pd.DataFrame({"2": [f"22:{20_000_000 + k}:A:C" for k in range(max_variants)]})
        people.index, variants.index = people.index.astype(str), variants.index.astype(str)
        ad.AnnData(rare_variants(chunk_samples, max_variants), obs=people, var=variants).write_zarr(place)

    add_module("cellink.io", stream_pgen_to_zarr=stream_pgen_to_zarr, read_pgen_zarr=ad.read_zarr)
    return {}


def many_cells(number):
    """One of the two files that a cell would download: as many cells as there, a hundredth of the genes."""
    num_cells, num_genes = {1: (99_457, 354), 2: (72_335, 364)}[number]
    counts = sparse_rows(num_cells, num_genes, 4, seed=number)
    kinds = pd.Categorical.from_codes(np.arange(num_cells) * 7 % 19, [f"type {k}" for k in range(19)])
    obs = pd.DataFrame({"cell_type": kinds}, index=[f"{number}-{k}" for k in range(num_cells)])
    return ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=[f"gene_{k}" for k in range(num_genes)]))


def scrnaseq():
    """Both files, with raw counts in `raw`, and what was computed of them in X."""
    for number in (1, 2):
        made = many_cells(number)
        made.raw = made.copy()
        made.X = made.X.log1p()
        made.write_h5ad(f"human_dataset_{number}.h5ad")
    return {}


def docstring_of_loader():
    fitted = []
    return {"my_anndata": cells(0), "do_fit": fitted.append, "fitted": fitted}


def docstrings_of_io():
    paths = [f"path/to/{name}_adata.h5ad" for name in ("first", "second", "third")]
    write_cells(*paths)
    DatasetCollection("path/to/collection.zarr").add_adatas(paths)
    return {"DatasetCollection": DatasetCollection, "pd": pd}


def docstring_of_class_sampler():
    return {"collection": grouped_collection("grouped.zarr", "categories")}


def docstring_of_distributed_sampler():
    """Both frameworks have to be initialised before; the function of the last example closes over two names."""
    import jax
    import torch.distributed as dist

    from rankwise.testing.held_ports import hold_port

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    jax.distributed.initialize(f"localhost:{hold_port()}", num_processes=1, process_id=0)
    return {"rank": 2, "world_size": 3}


PAGES = {
    "README.md": readme,
    "docs/detailed-walkthrough.md": walkthrough,
    "docs/faq.md": faq,
    "docs/preshuffling.md": preshuffling,
    "docs/tutorials/genetics.ipynb": genetics,
    "docs/tutorials/images.ipynb": images,
    "docs/tutorials/scrnaseq.ipynb": scrnaseq,
    "src/annbatch/io.py": docstrings_of_io,
    "src/annbatch/loader.py": docstring_of_loader,
    "src/annbatch/samplers/_class_samplers/_class_sampler.py": docstring_of_class_sampler,
    "src/annbatch/samplers/_distributed_sampler.py": docstring_of_distributed_sampler,
}
