"""Every public name of a package of rows, with its members and arguments.

`annbatch_0_3_1.json` beside this file was made with annbatch 0.3.1 (Python 3.12): python names.py annbatch
"""

import importlib
import inspect
import json
import sys
import types

NAMES = {
    "": ("DatasetCollection", "Loader", "write_sharded"),
    "abc": ("Sampler",),
    "samplers": ("ClassSampler", "DistributedSampler", "RandomSampler", "SequentialSampler", "WeightedClassSampler"),
    "types": ("LoadRequest", "LoaderOutput"),
}


def describe(package):
    """Members by the name of what is public: arguments of what can be called, kinds of properties, keys of dicts."""
    found = {}
    for room, names in NAMES.items():
        module = importlib.import_module(f"{package}.{room}".rstrip("."))
        for name in names:
            found[f"{room}.{name}".lstrip(".")] = members_of(getattr(module, name))
    return found


def members_of(thing):
    if not isinstance(thing, type):
        return {"()": arguments_of(thing)}
    if issubclass(thing, dict):
        return {"keys": sorted(thing.__annotations__)}
    members = {"()": arguments_of(thing)}
    for name in dir(thing):
        if name.startswith("_") and name not in ("__iter__", "__len__", "_sample"):
            continue
        held = inspect.getattr_static(thing, name)
        if isinstance(held, property):
            members[name] = "property that can be set" if held.fset else "property"
        elif callable(held):
            members[name] = arguments_of(getattr(thing, name))
        else:
            members[name] = "attribute"
    return members


def arguments_of(function):
    """(name, kind, default) of each argument, the instance left out."""
    held = inspect.signature(function).parameters.values()
    return [[p.name, p.kind.name, default_of(p)] for p in held if p.name != "self"]


def default_of(parameter):
    if parameter.default is parameter.empty:
        return ""
    if isinstance(parameter.default, types.FunctionType):
        return "a function"
    if isinstance(parameter.default, tuple):
        return f"({', '.join(type(value).__name__ for value in parameter.default)})"
    return repr(parameter.default)


if __name__ == "__main__":
    json.dump(describe(sys.argv[1]), sys.stdout, indent=1)
