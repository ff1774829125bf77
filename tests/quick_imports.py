"""Pause the collection of garbage while a big library is imported, and leave what it made out of later collections.

`make tests` copies this file into the environment's site-packages, with a `.pth` line that imports it at every start of
Python. Importing torch makes half a million objects that live to the end: the collector walks them again and again, and
once more when the process ends. A test run starts a thousand such processes.

Collected as ever is what scripts and rankwise make.

The first optimizer of a process, its first DDP and its first profile import torch's compiler (`torch._dynamo`, with
sympy), and so does Lightning, which costs as much as torch itself: they ask it to leave some functions alone, what it
is set to, or what it has compiled. As long as nobody has loaded the compiler there is nothing to ask, so all runs
plainly; `torch.compile` loads it. Loading it hides
a race of torch: freeing a gloo group waits for the threads of its last collective while it holds the interpreter's
lock, which they need to let go of their tensor. rankwise waits for them itself; other scripts get a wait here.

A third of what importing torch costs are decompositions and rules for tensors without data, written in Python. They are
left until a fake tensor is made (by the compiler, by DTensor) or somebody asks for one of their names.

zarr's own thread does the work on files and chunks: for the few bytes of a test, handing it on to other threads takes a
third of all time. The same calls write the same files. And anndata asks for zarr's version with each array that it
writes, for which the file that tells it was found and parsed each time.

``PLAIN_IMPORTS=1`` switches all of this off: the demo is tested so, as its users run it.
"""

import builtins
import functools
import gc
import gzip
import importlib
import os
import sys
import threading
import time
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, SimpleNamespace

BIG = frozenset(
    {
        "accelerate", "anndata", "jax", "lightning", "mlflow", "moto", "numba", "numpy", "pandas", "pytorch_lightning",
        "ray", "scipy", "sklearn", "submitit", "tensorboard", "torch", "torch._dynamo", "torch.distributed.checkpoint",
        "torchmetrics", "wandb", "xarray", "zarr",
    }
)  # fmt: skip

# what importing torch leaves out, and what comes with it: each asks for the first, so that all are made in their order
LAZY = ("torch._meta_registrations", "torch._native")
RULES = frozenset({*LAZY, "torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store"})


def disable_when_loaded(module):
    """`torch._compile._disable_dynamo`: call the function itself while there is no compiler that could trace it."""
    disable = module._disable_dynamo

    def _disable_dynamo(fn=None, recursive=True, **options):
        if fn is None:
            return functools.partial(_disable_dynamo, recursive=recursive, **options)
        disabled = disable(fn, recursive, **options)

        @functools.wraps(fn)
        def inner(*args, **kwargs):
            return (disabled if "torch._dynamo" in sys.modules else fn)(*args, **kwargs)

        return inner

    module._disable_dynamo = _disable_dynamo


def disable_for_others_when_loaded(module):
    """`torch.compiler.disable`: the same for functions of others; what else it is given loads the compiler."""
    disable = module.disable

    def disable_function(fn=None, recursive=True, **options):
        if "torch._dynamo" in sys.modules or not isinstance(fn, FunctionType):
            return disable(fn, recursive, **options)
        return sys.modules["torch._compile"]._disable_dynamo(fn, recursive)

    module.disable = disable_function


class OfUnloaded(type):
    """What stands for a class of a module that is not loaded: nothing is one before."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, getattr(sys.modules.get(cls.__module__), cls.__name__, ()))


def ask_when_loaded(name, attribute):
    """Before a module of Lightning's or Accelerate's runs that imports a class only to ask if something is of it."""
    found = Unloaded(name, **{attribute: OfUnloaded(attribute, (), {"__module__": name})})
    return lambda module: find_here(module, name, found)


def spare_signals(module):
    """Before torchmetrics gives `scipy.signal` an old name, which a library misses that is not installed."""
    find_here(module, "scipy.signal", SimpleNamespace(signal=SimpleNamespace(hamming=None)))


def find_here(module, wanted, found):
    """Let the module's own import of something that is not loaded find this; it has not run yet."""

    def find(name, *args, **kwargs):
        return found if name == wanted and name not in sys.modules else builtins.__import__(name, *args, **kwargs)

    module.__builtins__ = {**vars(builtins), "__import__": find}


def break_graphs_when_loaded(module):
    """`torch.optim.optimizer._use_grad_for_differentiable`: the step of an optimizer, without breaks of no graph."""
    decorate, torch = module._use_grad_for_differentiable, sys.modules["torch"]

    def _use_grad_for_differentiable(func):
        breaking = decorate(func)

        @functools.wraps(func)
        def step(self, *args, **kwargs):
            if "torch._dynamo" in sys.modules:
                return breaking(self, *args, **kwargs)
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return func(self, *args, **kwargs)

        return step

    module._use_grad_for_differentiable = _use_grad_for_differentiable


class Unloaded:
    """What DDP asks of `torch._dynamo.utils` when it is made; all else loads the compiler and is asked there."""

    def __init__(self, name="torch._dynamo", **known):
        self.__name__ = name
        self.__dict__.update(known)

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self.__name__), attribute)


def set_default_of_ddp(module):
    """`torch._dynamo` until it is imported, which sets the attribute anew: with the default of its configuration."""
    utils = Unloaded("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
    sys.modules["torch"]._dynamo = Unloaded(utils=utils)


def ask_no_compiler(module):
    """`torch.profiler`: a profile begins by loading the compiler to ask it for CUDA graphs."""
    profile, torch = module._KinetoProfile, sys.modules["torch"]
    prepare = profile.prepare_trace

    def loaded(name):
        raise AttributeError(name)

    def prepare_trace(self):
        if "torch._inductor" in sys.modules:
            return prepare(self)
        attributes, torch.__getattr__ = torch.__getattr__, loaded
        try:
            return prepare(self)
        finally:
            torch.__getattr__ = attributes

    profile.prepare_trace = prepare_trace


def compare_plain_shapes(module):
    """`torch.autograd._make_grads`: a backward pass with a gradient loads sympy to compare shapes, of symbols only."""
    make, torch = module._make_grads, sys.modules["torch"]

    def is_plain(out, grad):
        tensors = isinstance(out, torch.Tensor) and isinstance(grad, torch.Tensor)
        return tensors and not out.is_nested and out.shape == grad.shape and out.is_complex() == grad.is_complex()

    def _make_grads(outputs, grads, is_grads_batched):
        if "sympy" not in sys.modules and not is_grads_batched and all(map(is_plain, outputs, grads)):
            return tuple(grads)
        return make(outputs, grads, is_grads_batched)

    module._make_grads = _make_grads


def let_threads_finish(module):
    """`destroy_process_group` of scripts that know only torch: first give the interpreter to gloo's threads."""
    destroy = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group=None):
        time.sleep(0.05)
        destroy(group)

    module.destroy_process_group = destroy_process_group


def load_rules_of_fake_tensors(module):
    """`torch._subclasses.fake_tensor`: a mode that makes fake tensors needs what `LAZY` has left out."""
    mode = module.FakeTensorMode
    init = mode.__init__

    @functools.wraps(init)
    def begin(self, *args, **kwargs):
        importlib.import_module(LAZY[0])
        init(self, *args, **kwargs)

    mode.__init__ = begin


def forget_what_was_left_out(torch):
    """Take the empty modules away that stood for `LAZY` while torch was imported."""
    for name in LAZY:
        sys.modules.pop(name, None)
        vars(torch).pop(name.rpartition(".")[2], None)
    torch._lazy_modules.update(name.rpartition(".")[2] for name in RULES if name.count(".") == 1)


def set_type_of_generators(module):
    """`torch._library.opaque_object`: one thing that the rules left out by `LAZY` do and that others need."""
    sys.modules["torch"]._C._set_generator_metaclass(module.OpaqueBaseMeta)


def keep_commands(module):
    """`typer.main`: look at all functions of a command line once, and not at each call again."""
    module.get_command = functools.cache(module.get_command)


def name_source_by_frame(module):
    """`torch._library.utils.get_source`: its file and line, without `inspect`'s walk over all modules."""

    def get_source(stacklevel):
        frame = sys._getframe(stacklevel)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    module.get_source = get_source


class NoThreads:
    """`asyncio` whose `to_thread` calls the function where it is."""

    def __getattr__(self, name):
        return getattr(sys.modules["asyncio"], name)

    async def to_thread(self, call, *arguments, **options):
        return call(*arguments, **options)


def hand_nothing_on(module):
    """A module of zarr that reads, writes or decodes in other threads."""
    module.asyncio = NoThreads()


def ask_version_once(module):
    """A module of anndata that asks for versions."""
    module.version = functools.cache(module.version)


AFTER = {
    "typer.main": keep_commands,
    "torch": forget_what_was_left_out,
    "torch._library.utils": name_source_by_frame,
    "torch._library.opaque_object": set_type_of_generators,
    "torch._subclasses.fake_tensor": load_rules_of_fake_tensors,
    "torch._compile": disable_when_loaded,
    "torch.compiler": disable_for_others_when_loaded,
    "torch.autograd": compare_plain_shapes,
    "torch.distributed.distributed_c10d": let_threads_finish,
    "torch.optim.optimizer": break_graphs_when_loaded,
    "torch.nn.parallel.distributed": set_default_of_ddp,
    "torch.profiler.profiler": ask_no_compiler,
    **dict.fromkeys(
        (
            "zarr.codecs._v2",
            "zarr.codecs.blosc",
            "zarr.codecs.gzip",
            "zarr.codecs.numcodecs._codecs",
            "zarr.codecs.zstd",
            "zarr.storage._local",
        ),
        hand_nothing_on,
    ),
    **dict.fromkeys(("anndata._core.sparse_dataset", "anndata._io.specs.methods"), ask_version_once),
}
BEFORE = {
    "accelerate.utils.other": ask_when_loaded("torch.distributed.tensor", "DTensor"),  # which imports sympy
    "lightning.fabric.wrappers": ask_when_loaded("torch._dynamo", "OptimizedModule"),
    "lightning.pytorch.utilities.compile": ask_when_loaded("torch._dynamo", "OptimizedModule"),
    **dict.fromkeys(("torchmetrics", "torchmetrics.audio", "torchmetrics.functional.audio"), spare_signals),
}


class Ready:
    """The loader of a module that has nothing to be executed: an empty one, or one that was imported meanwhile."""

    def __init__(self, module=None):
        self._module = module

    def create_module(self, spec):
        return self._module

    def exec_module(self, module):
        """Nothing."""


class Finder:
    """Finds the libraries that are big, and has them executed without collections."""

    def __init__(self):
        self._lock, self._depth, self._enabled, self._freeze = threading.Lock(), 0, True, True

    def find_spec(self, name, path=None, target=None):
        if not any(name in names for names in (BIG, BEFORE, AFTER, RULES)):
            return None
        if name in RULES:
            if name in LAZY and sys.modules["torch"].__spec__._initializing:
                return ModuleSpec(name, Ready())
            if name != LAZY[0]:
                importlib.import_module(LAZY[0])
            if name in sys.modules:
                spec = sys.modules[name].__spec__
                spec.loader = Ready(sys.modules[name])
                return spec
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute, run = spec.loader.exec_module, self._execute
            before, after = (hooks.get(name, lambda _: None) for hooks in (BEFORE, AFTER))
            spec.loader.exec_module = lambda module: (before(module), run(execute, module), after(module))
        return spec

    def _execute(self, execute, module):
        with self._lock:
            if self._depth == 0:
                # nothing of the script's own can be a model yet; a list of all objects would break tuples that another
                # thread is just making (SystemError in tupleobject.c)
                self._enabled, self._freeze = gc.isenabled(), "torch.nn" not in sys.modules
                gc.disable()
            self._depth += 1
        try:
            execute(module)
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    if self._freeze:
                        gc.freeze()
                    if self._enabled:
                        gc.enable()


def load_digits(*, n_class=10, return_X_y=False, as_frame=False):  # noqa: N803
    """`sklearn.datasets.load_digits`: what examples take of it is one file, which numpy reads as it does there."""
    package = sys.modules["sklearn.datasets"]
    if not return_X_y or n_class < 10 or as_frame:
        run_postponed(package.__name__)
        return package.load_digits(n_class=n_class, return_X_y=return_X_y, as_frame=as_frame)
    with gzip.open(f"{package.__path__[0]}/data/digits.csv.gz", "rt") as file:
        table = importlib.import_module("numpy").loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


# scikit-learn imports pandas and most of scipy: it waits until more is asked of it than its digits
POSTPONED = {"sklearn": {}, "sklearn.datasets": {"load_digits": load_digits}}
WAITING = {}


def run_postponed(name):
    """Run a module that waits, and before it its package."""
    for each in POSTPONED:
        if f"{name}.".startswith(f"{each}.") and each in WAITING:
            module, execute = WAITING.pop(each)
            del module.__getattr__
            execute(module)


class PostponingFinder:
    """Finds what is `POSTPONED`; as soon as other modules of its packages are imported, these have run."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        if name not in POSTPONED:
            run_postponed(name)
            return None
        spec = self._finder.find_spec(name, path, target) or PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._postpone(module, execute)
        return spec

    def _postpone(self, module, execute):
        def find_attribute(attribute):
            if module.__name__ not in WAITING:
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
            run_postponed(module.__name__)
            return getattr(module, attribute)

        WAITING[module.__name__] = (module, execute)
        module.__getattr__ = find_attribute
        vars(module).update(POSTPONED[module.__name__])


if "PLAIN_IMPORTS" not in os.environ:
    finder = Finder()
    sys.meta_path[:0] = [PostponingFinder(finder), finder]
