"""Functions travel by name where a fresh interpreter finds them, also decorated ones."""

import functools
import json
import pickle

from rankwise.launch import packing
from rankwise.launch.packing import Reference, pack_call


def test_by_name():
    """A function of an installed module is a reference, resolved to the same object."""
    fn, args, kwargs = pickle.loads(pickle.loads(pack_call(json.dumps, (1,), {"indent": 2}))["call"])
    assert isinstance(fn, Reference)
    assert fn.resolve() is json.dumps
    assert (args, kwargs) == ((1,), {"indent": 2})


def test_the_undecorated_function_is_found(monkeypatch):
    """A name that now means the decorated function still leads to the undecorated one."""
    original = json.dumps
    decorated = functools.wraps(original)(functools.partial(original))
    twice = functools.wraps(decorated)(functools.partial(decorated))
    monkeypatch.setattr(json, "dumps", twice)
    reference = packing._reference(original)
    assert reference.depth == 2
    assert reference.resolve() is original


def test_by_value_where_no_name_leads():
    """Closures and test functions go by value."""
    value = 7
    fn, _, _ = pickle.loads(pickle.loads(pack_call(lambda: value, (), {}))["call"])
    assert fn() == 7
