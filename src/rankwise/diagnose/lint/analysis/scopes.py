"""Places in a file: branches, scopes, bindings, calls and exits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankwise.diagnose.lint.analysis.guards import Side, is_mode_test
from rankwise.diagnose.lint.analysis.names import last


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
    def guard(self) -> Branch | None:
        """The innermost test of the rank around it."""
        return next((branch for branch in reversed(self.branches) if branch.side), None)

    @property
    def side(self) -> Side | None:
        """On which ranks it runs: "main" only, "other" only, or None."""
        return next((branch.side for branch in self.branches if branch.side), None)

    @property
    def contexts(self) -> list[str]:
        """The contexts of the ``with`` blocks around it, as text."""
        return [ast.unparse(item.context_expr) for with_ in self.withs for item in with_.items]

    @property
    def targets(self) -> list[ast.expr]:
        """What its statement assigns to; the parts of a tuple one by one."""
        listed = self.stmt.targets if isinstance(self.stmt, ast.Assign) else ()
        return [part for target in listed for part in getattr(target, "elts", [target])]


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
    exits: list[Place] = field(default_factory=list)
    functions: dict[str, Scope] = field(default_factory=dict)

    @property
    def is_function(self) -> bool:
        """Whether it is a function."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef)

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def bases(self) -> list[ast.expr]:
        """What a class is made of."""
        return self.node.bases if isinstance(self.node, ast.ClassDef) else []

    @property
    def owner(self) -> Scope | None:
        """The class that it is a method of."""
        return self.parent if self.parent is not None and self.parent.is_class else None

    @property
    def function(self) -> Scope | None:
        """It, or the innermost function around it."""
        return next((found for found in self.chain() if found.is_function), None)

    @property
    def start(self) -> Place:
        """The place at its head, with nothing around it."""
        return Place(self.node, [], 0, self, (), (), (), ())  # type: ignore[arg-type]

    @property
    def bound(self) -> list[Binding]:
        """All bindings in it."""
        return [found for listed in self.bindings.values() for found in listed]

    @property
    def returned(self) -> list[ast.expr]:
        """The values that a function returns."""
        found = (exit_.stmt.value for exit_ in self.exits if isinstance(exit_.stmt, ast.Return))
        return [value for value in found if value is not None]

    def default(self, name: str) -> ast.expr | None:
        """Return the default of a parameter that may be given by position."""
        args = getattr(self.node, "args", None)
        pairs = zip(reversed([*args.posonlyargs, *args.args]), reversed(args.defaults), strict=False) if args else ()
        return next((value for arg, value in pairs if arg.arg == name), None)

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

    @property
    def made(self) -> ast.expr | None:
        """The value of its statement, of which a tuple's part has no one expression."""
        return self.value or getattr(self.place.stmt, "value", None)


@dataclass(slots=True, eq=False)
class Call:
    """One call. `text` is what is written, `method` its last part, `name` the full name where an import binds its root.

    `spread` holds the arguments that come by ``**options`` where the file shows all of the options, else None.
    """

    node: ast.Call
    text: str
    place: Place
    name: str = ""
    spread: list[ast.keyword] | None = None
    method: str = field(init=False)

    def __post_init__(self) -> None:
        self.method = last(self.text)

    @property
    def base(self) -> str:
        """Its text without the last part."""
        return self.text.rpartition(".")[0]

    @property
    def given(self) -> list[ast.expr]:
        """All arguments that are written in it."""
        return [*self.node.args, *(word.value for word in self.node.keywords)]

    @property
    def targets(self) -> list[ast.expr]:
        """What its result is assigned to; the parts of a tuple one by one."""
        return self.place.targets if getattr(self.place.stmt, "value", None) is self.node else []

    @property
    def is_alone(self) -> bool:
        """Whether it is a statement whose result is dropped."""
        return isinstance(self.place.stmt, ast.Expr) and self.place.stmt.value is self.node

    def keyword(self, name: str) -> ast.keyword | None:
        """Return a keyword argument."""
        return next((found for found in (*self.node.keywords, *(self.spread or ())) if found.arg == name), None)

    def argument(self, name: str, index: int | None = None) -> ast.expr | None:
        """Return an argument by keyword, else by position."""
        found = self.keyword(name)
        if found is not None:
            return found.value
        before = [] if index is None or index < 0 else self.node.args[: index + 1]
        starred = any(isinstance(arg, ast.Starred) for arg in before)
        return before[-1] if len(before) > (index or 0) and not starred else None

    @property
    def is_open(self) -> bool:
        """Whether ``*args`` or ``**kwargs`` hide some of its arguments."""
        hidden = self.spread is None and any(word.arg is None for word in self.node.keywords)
        return hidden or any(isinstance(arg, ast.Starred) for arg in self.node.args)


def excludes(one: Place, other: Place) -> bool:
    """Whether two places lie in different branches of one `if`, or of two that ask for the same way of running."""
    sides = dict(map(_answer, other.branches))
    return any(sides.get(asked, taken) is not taken for asked, taken in map(_answer, one.branches))


def _answer(branch: Branch) -> tuple[ast.stmt | str, bool]:
    """Return what a branch asks, and what holds there: `if args.distributed` says the same wherever it stands."""
    test, taken = branch.test, branch.taken
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, taken = test.operand, not taken
    flag = isinstance(test, ast.Name | ast.Attribute) and branch.side is None and is_mode_test(test)
    return (ast.unparse(test), taken) if flag else (branch.node, branch.taken)
