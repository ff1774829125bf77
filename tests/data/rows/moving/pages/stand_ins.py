"""What is not as it stands when annbatch's pages are executed here: data, each with its reason.

Pages take files, names and machines for granted. `making.py` makes the files (under the names that the pages use) and
the names, `no_gpu.py` plays the GPU; the rest is in these tables, and tests hold that they name nothing too much.
"""

import re

PAGES = (  # all that have something to execute
    "README.md",
    "docs/custom-sampler.md",
    "docs/detailed-walkthrough.md",
    "docs/faq.md",
    "docs/preshuffling.md",
    "docs/tutorials/distributed.ipynb",
    "docs/tutorials/genetics.ipynb",
    "docs/tutorials/images.ipynb",
    "docs/tutorials/quickstart.ipynb",
    "docs/tutorials/scrnaseq.ipynb",
    "docs/zarr-configuration.md",
    "src/annbatch/io.py",
    "src/annbatch/loader.py",
    "src/annbatch/samplers/_class_samplers/_class_sampler.py",
    "src/annbatch/samplers/_distributed_sampler.py",
)
RUN = ("python", "cell", "prompt")  # kinds of blocks that are executed
DIRECTIVES = re.compile(r"\{(eval-rst|toctree|literalinclude|include|note|important|image|bibliography)\}.*")

SHELL = "commands that install annbatch"
DRAWING = "a drawing, no code"
OTHERS = "programs for VCF files, which are no input here; nothing of annbatch is in it"
DEVELOPING = "how annbatch itself is developed"
NOT_RUN = {
    "README.md": {0: SHELL},
    "docs/contributing.md": dict.fromkeys(range(15), DEVELOPING),
    "docs/custom-sampler.md": {0: DRAWING, 3: DRAWING, 6: DRAWING, 7: DRAWING},
    "docs/installation.md": {0: SHELL, 1: SHELL},
    "docs/tutorials/genetics.ipynb": {4: OTHERS, 6: OTHERS, 8: OTHERS},
}

TENSORS = "written for annbatch 0.2, whose batches were torch's by default; since 0.3 `to` says so, there as here"
FORKS = "all are forked at once, for two files here"
DOTS = "three dots stand for arguments that are left to the reader"
CHANGED = {  # page: what is written there, what is executed, why
    "docs/detailed-walkthrough.md": ("RandomSampler(..., rng=rng)", "RandomSampler(32, 8, 64, rng=rng)", DOTS),
    "docs/preshuffling.md": ("max_workers=64", "max_workers=2", FORKS),
    "docs/tutorials/distributed.ipynb": ("preload_to_gpu=False).use", 'preload_to_gpu=False, to="torch").use', TENSORS),
    "docs/tutorials/genetics.ipynb": ("preload_to_gpu=False)", 'preload_to_gpu=False, to="torch")', TENSORS),
    "docs/tutorials/images.ipynb": ("preload_to_gpu=False)", 'preload_to_gpu=False, to="torch")', TENSORS),
    "docs/tutorials/quickstart.ipynb": ("preload_to_gpu=False)", 'preload_to_gpu=False, to="torch")', TENSORS),
    "docs/tutorials/scrnaseq.ipynb": ("preload_to_gpu=True,", 'preload_to_gpu=True, to="torch",', TENSORS),
}

# What a cell is stored to have printed, and what it prints here.
PLACES = "paths of that machine"
RANDOM = "follows from the shuffle, which has no seed there"
TIME = "time that it took"
NOT_DETERMINED = {  # page: what of the text depends on the machine or on chance
    "docs/tutorials/images.ipynb": ((r"'[^']*/(?=\w+\.h5sc)", PLACES),),
    "docs/tutorials/quickstart.ipynb": ((r"'(B|T|NK)'", RANDOM),),
    "docs/tutorials/scrnaseq.ipynb": ((r"(?<=in this batch: )\d+", RANDOM), (r"(?<=cells in ).*(?=cells/s)", TIME)),
}
FEWER_GENES = "files with a hundredth of the genes, and all of the cells"
SAID_HERE = {  # page: their text, ours, why
    "docs/tutorials/scrnaseq.ipynb": (
        ("35,475 genes", "354 genes", FEWER_GENES),
        ("36,406 genes", "364 genes", FEWER_GENES),
        ("(4096, 36406)", "(4096, 364)", FEWER_GENES),
    ),
}
# Ranks print in any order, now and then on one line (a text and the end of its line are written one after the other);
# and `grep "rank"` of that cell also finds paths of a checkout that is called rankwise.
OF_RANKS = ("docs/tutorials/distributed.ipynb", 9, r"\[rank [^[\n]+")

TWICE = "a file once more, as the page says; that its rows are there twice, and how they lie, is said here"
WARNED = {  # page: what the warnings say that its blocks cause, why
    "docs/tutorials/scrnaseq.ipynb": (
        ("scrnaseq_collection.zarr already has rows of human_dataset_1.h5ad", TWICE),
        ("scrnaseq_collection.zarr: 99457 new rows are shuffled among themselves", TWICE),
    ),
}
