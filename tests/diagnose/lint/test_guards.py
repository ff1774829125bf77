"""Tests of the rank are recognised in the ways people write them; tests of other things are not."""

import ast

import pytest

from rankwise.diagnose.lint.analysis.guards import side_of
from rankwise.diagnose.lint.analysis.walk import read_module


def nothing(text):
    del text


@pytest.mark.parametrize(
    ("test", "side"),
    [
        ("rank == 0", "main"),
        ("0 == args.local_rank", "main"),
        ("not rank", "main"),
        ("not dist.get_rank()", "main"),
        ("rank in (-1, 0)", "main"),
        ("args.local_rank not in [-1, 0]", "other"),
        ("is_main_process()", "main"),
        ("self.is_main", "main"),
        ("master_process", "main"),
        ("trainer.is_global_zero", "main"),
        ("not is_master()", "other"),
        ("rank != 0", "other"),
        ("rank > 0", "other"),
        ("rank < 1", "main"),
        ("int(os.environ['RANK']) == 0", "main"),
        ("int(os.environ.get('LOCAL_RANK', 0)) == 0", "main"),
        ("rank % gpus == 0", "main"),
        ("epoch % 5 == 0 and rank == 0", "main"),
        ("(epoch % 5 == 0) & (rank == 0)", "main"),
        ("not args.distributed or rank == 0", "main"),
        ("rank == 3", "other"),
        # equal on all ranks, or unknown
        ("rank == -1", None),
        ("local_rank != -1", None),
        ("step == 0", None),
        ("rank == 0 or epoch == 3", None),
        ("rank < world_size", None),
        ("__name__ == '__main__'", None),
        ("main", None),
        ("dist.is_initialized()", None),
        ("mask.rank", None),
    ],
)
def test_sides(test, side):
    """The side on which a test holds."""
    assert side_of(ast.parse(test, mode="eval").body, nothing) == side


def sides(source):
    """The names called in a source, with the side of each."""
    return {call.text: call.place.side for call in read_module("m.py", source).calls}


def test_variables_early_returns_and_decorators():
    """A variable that holds the answer, what follows a return, and a decorator for the main rank."""
    found = sides("""
verbose = rank == 0
if verbose:
    a()
else:
    b()

def f(rank):
    if rank != 0:
        return
    c()

def g(rank):
    for x in xs:
        if rank != 0:
            continue
        d()
    e()

@rank_zero_only
def h():
    i()

def j(rank):
    if rank >= 8:
        raise ValueError
    k()
""")
    wanted = {"a": "main", "b": "other", "c": "main", "d": "main", "e": None, "i": "main", "k": None}
    assert found == wanted


def test_aliases():
    """Imports under other names, and at the top of the file a name bound to an attribute."""
    module = read_module(
        "m.py",
        "import torch as th, torch.nn as nn\nfrom torch import distributed as d\nfrom torch.nn.parallel import *\n"
        "DDP = nn.parallel.DistributedDataParallel\ndef f():\n    th.load(1); d.barrier(); DDP(2); mine.DDP(3)\n",
    )
    names = {call.text: call.name for call in module.calls}
    assert names["th.load"] == "torch.load"
    assert names["d.barrier"] == "torch.distributed.barrier"
    assert names["DDP"] == "torch.nn.parallel.DistributedDataParallel"
    assert not names["mine.DDP"]


def test_a_name_of_two_imports_is_unknown():
    """A fallback import may be either, so no rule speaks about it."""
    source = (
        "try:\n    from apex.parallel import DDP\nexcept ImportError:\n    from torch.nn.parallel import DDP\nDDP(1)\n"
    )
    [call] = read_module("m.py", source).calls
    assert call.name == "?DDP"
