"""Functions travel by name where a fresh interpreter finds them, also decorated ones."""

import collections
import functools
import json
import pickle
import sys
import threading

import numpy as np
import pytest
import torch

from rankwise.errors import ConfigError
from rankwise.launch.functions import pickled_call
from rankwise.launch.functions.callee import find_function
from rankwise.launch.functions.pickled_call import pack_call


def test_by_name():
    """A function of an installed module is a reference, resolved to the same object."""
    packed = pickle.loads(pack_call(json.dumps, (1,), {"indent": 2})[0])
    fn, args, kwargs = pickle.loads(packed["call"])
    assert (fn, find_function(*packed["reference"])) == (None, json.dumps)
    assert (args, kwargs) == ((1,), {"indent": 2})


def test_the_undecorated_function_is_found(monkeypatch):
    """A name that now means the decorated function still leads to the undecorated one."""
    original = json.dumps
    decorated = functools.wraps(original)(functools.partial(original))
    twice = functools.wraps(decorated)(functools.partial(decorated))
    monkeypatch.setattr(json, "dumps", twice)
    reference = pickled_call._reference(original)
    assert reference[2] == 2
    assert find_function(*reference) is original


def test_by_value_where_no_name_leads():
    """Closures and test functions go by value."""
    value = 7
    fn, _, _ = pickle.loads(pickle.loads(pack_call(lambda: value, (), {})[0])["call"])
    assert fn() == 7


class Holder:
    def __init__(self, **parts):
        self.__dict__.update(parts)


class Slotted:
    __slots__ = ("hook",)

    def __init__(self, hook):
        self.hook = hook


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024


def guilty(*args, fn=print, **kwargs):
    """What an error blames."""
    with pytest.raises(ConfigError, match="cannot be sent to the ranks") as caught:
        pack_call(fn, args, kwargs)
    return str(caught.value).partition(", a lock, cannot be sent")[0]


def test_what_cannot_be_sent_is_named_by_its_path():
    """Attributes, slots, items, fields, parts of torch modules, and what a function inside an argument uses."""
    lock = threading.Lock()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    model[1].hook = lock
    assert guilty(Holder(a=1, model=Holder(hook=lock))) == "argument args[0].model.hook of print"
    assert guilty(1, Slotted([{"x": lock}])) == "argument args[1].hook[0]['x'] of print"
    assert guilty(net=model) == "argument net.1.hook of print"
    assert guilty(pair=Pair(1, functools.partial(print, lock))) == "argument pair.right.args[0] of print"
    assert guilty(lambda: lock) == "argument args[0], which uses lock of print"


def test_what_a_function_uses_and_cannot_be_sent_is_named():
    """A closure's variable, also one that a function inside it uses, and a value inside that."""
    held = Holder(locks=[threading.Lock()])

    def inner():
        return held

    def train():
        return inner()

    assert guilty(fn=train).endswith("train, which uses inner, which uses held.locks[0]")


def test_without_cloudpickle_it_is_named_as_well(monkeypatch):
    """A function that is sent by name is not to blame for its arguments."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert guilty([threading.Lock()], fn=json.dumps) == "argument args[0][0] of dumps"
    with pytest.raises(ConfigError, match="pip install cloudpickle"):
        pack_call(lambda: 1, (threading.Lock(),), {})


def test_a_value_that_holds_itself_is_searched_once():
    """The search for what is to blame ends."""
    one = Holder(lock=threading.Lock())
    one.again = one
    assert guilty(one) == "argument args[0].lock of print"


def test_a_function_that_takes_much_along_says_so(capsys):
    """The variable and its size; large arguments, which were asked for, are not talked about."""
    held = Holder(small=np.zeros(10), images=np.zeros(9_000_000))
    pack_call(print, (held,), {})
    assert capsys.readouterr().err == ""
    pack_call(lambda: held, (), {})
    said = capsys.readouterr().err
    assert "which uses held.images, a ndarray, takes 72 MB to every rank" in said
