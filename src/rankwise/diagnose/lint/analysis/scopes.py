"""Places in a file: branches, scopes, bindings, calls and exits."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rankwise.diagnose.lint.analysis.guards import Side
from rankwise.diagnose.lint.analysis.names import last

__all__ = ["Binding", "Branch", "Call", "Exit", "Place", "Scope", "excludes"]


@dataclass(slots=True, eq=False)
class Branch:
    """One branch of an ``if``, or what follows one that ends early."""

    test: ast.expr
    taken: bool  # the test holds there
    side: Side | None
    node: ast.stmt


@dataclass(slots=True, eq=False)
class Place:
    """Where a statement stands. All expressions in it share this."""

    stmt: ast.stmt
    block: list[ast.stmt]
    index: int
    scope: Scope
    loops: tuple[ast.stmt, ...]
    branches: tuple[Branch, ...]
    withs: tuple[ast.With | ast.AsyncWith, ...]
    tries: tuple[ast.stmt, ...]

    @property
    def side(self) -> Side | None:
        """On which ranks it runs: "main" only, "other" only, or None."""
        return next((branch.side for branch in self.branches if branch.side), None)


@dataclass(slots=True, eq=False)
class Scope:
    """The module, a class or a function."""

    name: str
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    parent: Scope | None
    place: Place | None
    params: tuple[str, ...] = ()
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    functions: dict[str, Scope] = field(default_factory=dict)

    @property
    def is_function(self) -> bool:
        """Whether it is a function."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef)

    @property
    def owner(self) -> Scope | None:
        """The class that it is a method of."""
        return self.parent if self.parent is not None and isinstance(self.parent.node, ast.ClassDef) else None

    def default(self, name: str) -> ast.expr | None:
        """Return the default of a parameter that may be given by position."""
        if not isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        args = [*self.node.args.posonlyargs, *self.node.args.args]
        pairs = zip(reversed(args), reversed(self.node.args.defaults), strict=False)
        return next((value for arg, value in pairs if arg.arg == name), None)

    def annotation(self, name: str) -> ast.expr | None:
        """Return the annotation of a parameter."""
        args = self.node.args if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        listed = [*args.posonlyargs, *args.args, *args.kwonlyargs] if args is not None else []
        return next((arg.annotation for arg in listed if arg.arg == name), None)

    def chain(self) -> Iterator[Scope]:
        """Yield it and the scopes around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


@dataclass(slots=True, eq=False)
class Binding:
    """``text = value``: a variable or an attribute is bound. The value is None where it is not one expression.

    `seen` is then what a function of this file gives for it: ``rank, size = setup()``.
    """

    text: str
    value: ast.expr | None
    place: Place
    seen: ast.expr | None = None

    @property
    def shown(self) -> ast.expr | None:
        """The value, or what a function gives."""
        return self.value if self.value is not None else self.seen


@dataclass(slots=True, eq=False)
class Call:
    """One call. `text` is what is written, `name` the full name where an import binds its root, else "".

    `spread` holds the arguments that come by ``**options`` where the file shows all of the options.
    """

    node: ast.Call
    text: str
    place: Place
    name: str = ""
    spread: Sequence[ast.keyword] = ()
    is_spread: bool = False

    @property
    def method(self) -> str:
        """The last part of its text."""
        return last(self.text)

    @property
    def base(self) -> str:
        """Its text without the last part."""
        return self.text.rpartition(".")[0]

    def keyword(self, name: str) -> ast.keyword | None:
        """Return a keyword argument."""
        return next((found for found in (*self.node.keywords, *self.spread) if found.arg == name), None)

    def argument(self, name: str, index: int | None = None) -> ast.expr | None:
        """Return an argument by keyword, else by position."""
        found = self.keyword(name)
        if found is not None:
            return found.value
        args = self.node.args
        if (
            index is None
            or not 0 <= index < len(args)
            or any(isinstance(arg, ast.Starred) for arg in args[: index + 1])
        ):
            return None
        return args[index]

    @property
    def is_open(self) -> bool:
        """Whether ``*args`` or ``**kwargs`` hide some of its arguments."""
        hidden = any(word.arg is None for word in self.node.keywords) and not self.is_spread
        return hidden or any(isinstance(arg, ast.Starred) for arg in self.node.args)


@dataclass(slots=True, eq=False)
class Exit:
    """A ``return``, ``break``, ``continue`` or ``raise``."""

    node: ast.stmt
    place: Place


def excludes(one: Place, other: Place) -> bool:
    """Whether two places lie in different branches of one `if`."""
    sides = {branch.node: branch.taken for branch in other.branches}
    return any(sides.get(branch.node, branch.taken) is not branch.taken for branch in one.branches)
