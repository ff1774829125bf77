"""The model of one Python file: what is called, assigned and left where, in tables that rules query."""

from __future__ import annotations

import ast
import bisect
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rankwise.diagnose.lint.analysis.names import Imports, last, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Branch, Call, Place, Scope

_NEWLINE = re.compile(r"\r\n|\r|\n")
# names of the one object that carries the options of a run, equal on all ranks
OPTIONS = re.compile(r"args?|cfg|conf|config|opts?|options|hparams|hps|params|flags|settings", re.IGNORECASE)
# names that mean the same in every file that has them from `import *`
_BY_A_STAR = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.utils.data.distributed.DistributedSampler",
    "torch.utils.data.DataLoader",
)
_T = TypeVar("_T")


def once(ask: Callable[[Module], _T]) -> Callable[[Module], _T]:
    """Make of a question about a file one that is answered once."""

    @functools.wraps(ask)
    def answer(module: Module) -> _T:
        if ask not in module.answers:
            module.answers[ask] = ask(module)
        return module.answers[ask]  # type: ignore[no-any-return]

    return answer


class Module:
    """One file and its tables. `rankwise.diagnose.lint.analysis.walk` fills them; calls are sorted by where they stand.

    Attributes:
        path: as it is shown.
        source: its text.
        find_function: looks up a function of another file that was given, by its full name.
        find_users: returns the given files that import this one.
        answers: what `once` keeps, by the question.
    """

    def __init__(self, path: str, source: str, tree: ast.Module) -> None:
        self.path = path
        self.source = source
        self.tree = tree
        self.top = Scope("<module>", tree, None, None)
        self.imports = Imports()
        self.calls: list[Call] = []
        self.scopes: list[Scope] = [self.top]
        self.bindings: list[Binding] = []
        self.branches: list[Branch] = []
        self.environment: list[tuple[ast.Subscript, Place]] = []
        self.strings: list[tuple[ast.Constant, Place]] = []
        self.texts: set[str] = set()
        self.attributes: set[str] = set()
        self.fields: dict[str, list[Binding]] = {}
        self.by_name: dict[str, list[Call]] = {}
        self.by_method: dict[str, list[Call]] = {}
        self.call_of: dict[ast.Call, Call] = {}
        self.names: set[str] = set()
        self.find_function: Callable[[str], tuple[Module, Scope] | None] = lambda _: None
        self.find_users: Callable[[], list[Module]] = list
        self.answers: dict[Any, Any] = {}
        self.partials: dict[str, list[ast.keyword]] = {}
        self._starts: list[int] | None = None

    def finish(self) -> None:
        """Resolve the calls and sort them into tables."""
        by_name: dict[str, list[Call]] = defaultdict(list)
        by_method: dict[str, list[Call]] = defaultdict(list)
        self._guess_names()
        resolve = self.imports.resolve
        self.names = {scope.name for scope in self.scopes}
        self.texts = {node.value for node, _ in self.strings}  # type: ignore[misc]
        self.calls.sort(key=lambda call: (call.node.lineno, call.node.col_offset))
        for call in self.calls:
            name = resolve(call.text)
            if name is not None:
                call.name = name
                by_name[name].append(call)
            by_method[call.method].append(call)
            call.place.scope.calls.append(call)
            self.call_of[call.node] = call
            if any(word.arg is None for word in call.node.keywords):
                call.spread = self._spread(call)
            if call.text in self.partials:
                call.spread = [*(call.spread or ()), *self.partials[call.text]]
        self.by_name, self.by_method = dict(by_name), dict(by_method)

    def release(self) -> None:
        """Break the circles of its scopes after the last question, so that its memory is free without a collection."""
        self.answers.clear()
        for scope in self.scopes:
            for table in (scope.bindings, scope.calls, scope.exits, scope.functions):
                table.clear()

    def _guess_names(self) -> None:
        """Take names of torch, and `dist`, for what they say where a star import or another file brings them."""
        if "*" in self.imports.bound:
            defined = {scope.name for scope in self.scopes} | {found.text for found in self.bindings}
            for full in _BY_A_STAR:
                if last(full) not in defined:
                    self.imports.bound.setdefault(last(full), full)
        if "torch" not in self.imports.bound and any(call.text.startswith("torch.") for call in self.calls):
            self.imports.bound["torch"] = "torch"
        bound = self.imports.bound.get("dist", "")
        words = {"dist.init_process_group", "dist.get_rank", "dist.barrier", "dist.all_reduce"}
        if (not bound or bound.endswith(".dist")) and any(call.text in words for call in self.calls):
            self.imports.bound["dist"] = "torch.distributed"

    def _spread(self, call: Call) -> list[ast.keyword] | None:
        """Read ``**options`` where the options are shown: a dict that is bound once, and not written to."""
        hidden = [word.value for word in call.node.keywords if word.arg is None]
        shown = [self._options(value, call.place.scope) for value in hidden]
        return None if None in shown else [word for options in shown for word in options or ()]

    def _options(self, node: ast.expr, scope: Scope) -> list[ast.keyword] | None:
        if isinstance(node, ast.Name):
            bound = list(self.bindings_of(node.id, scope))
            written = rf"\b{node.id}(\s*\[|\s*\|=|\.(update|setdefault|pop|clear)\b)"
            if len(bound) != 1 or bound[0].value is None or re.search(written, self.source):
                return None
            node = bound[0].value
        if isinstance(node, ast.Call) and text_of(node.func) == "dict" and not node.args:
            return None if any(word.arg is None for word in node.keywords) else node.keywords
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return [ast.copy_location(ast.keyword(str(key.value), value), value) for key, value in pairs]  # type: ignore[union-attr]
        return None

    # Questions that many rules ask.

    def named(self, *names: str) -> Iterator[Call]:
        """Yield the calls of things with these full names."""
        for name in names:
            yield from self.by_name.get(name, ())

    def methods(self, *names: str) -> Iterator[Call]:
        """Yield the calls whose last part is one of these."""
        for name in names:
            yield from self.by_method.get(name, ())

    def has_call(self, *names: str) -> bool:
        """Whether anything with one of these last parts is called."""
        return any(name in self.by_method for name in names)

    def has_named(self, *names: str) -> bool:
        """Whether anything with one of these full names is called."""
        return any(name in self.by_name for name in names)

    def name_of(self, node: ast.expr | None) -> str:
        """Return the full name of an expression whose root an import binds, else ""."""
        return "" if node is None else self.imports.resolve(text_of(node)) or ""

    def made_by(self, node: ast.AST | None) -> str:
        """Return the full name of what an expression calls, "" for what is no call of a known thing."""
        return self.name_of(node.func) if isinstance(node, ast.Call) else ""

    def binding(self, text: str, scope: Scope, *, before: ast.AST | None = None) -> Binding | None:
        """Return the last binding of a variable that a scope sees; in the scope itself, that stands before a node."""
        for found in self.bindings_of(text, scope):
            if before is None or position(found.place.stmt) < position(before) or found.place.scope is not scope:
                return found
        return None

    def bindings_of(self, text: str, scope: Scope) -> Iterator[Binding]:
        """Yield the bindings of a variable that a scope sees, the last and innermost first.

        A field of an object that another function fills (``args.gpu = ...``) is seen everywhere in the file.
        """
        attribute = text.startswith(("self.", "cls."))
        for place in scope.chain():
            if place.is_class and not attribute:
                continue
            found = place.bindings.get(text)
            if found:
                yield from reversed(found)
                return
            if place.is_function and text.partition(".")[0] in place.params and not attribute:
                break
            if attribute and place.owner is not None:  # other methods of the class, and of those it is made of
                for owner in self.lineage(place.owner):
                    for method in owner.functions.values():
                        yield from reversed(method.bindings.get(text, ()))
                return
        base, _, name = text.partition(".")
        if name and OPTIONS.fullmatch(base) and text in self.fields:
            yield from reversed(self.fields[text])
        elif not attribute and text.count(".") == 1:  # a field of an object of a class of this file
            kind = self.class_of(base, scope)
            for made in () if kind is None else self.lineage(kind):
                for method in made.functions.values():
                    yield from reversed(method.bindings.get(f"self.{name}", ()))
                yield from reversed(made.bindings.get(name, ()))

    def value(self, node: ast.expr | None, scope: Scope, *, depth: int = 3) -> ast.expr | None:
        """Return what a variable was last bound to, through other variables; anything else as it is."""
        while depth and isinstance(node, ast.Name | ast.Attribute):
            found = self.binding(text_of(node), scope, before=node)
            if found is None or found.value is None:
                return node
            node, scope, depth = found.value, found.place.scope, depth - 1
        return node

    def lookup(self, scope: Scope) -> Callable[[str], ast.expr | None]:
        """Return what tests of the rank ask for the value of a variable that a scope sees."""

        def find(text: str) -> ast.expr | None:
            found = self.binding(text, scope)
            return None if found is None else found.shown

        return find

    def lineage(self, owner: Scope) -> list[Scope]:
        """Return a class and the classes of this file that it is made of, nearest first."""
        found = [owner]
        for each in found:
            known = (self.top.functions.get(text_of(base)) for base in each.bases)
            found += [base for base in known if base is not None and base.is_class and base not in found]
        return found

    def is_related(self, one: Scope | None, other: Scope | None) -> bool:
        """Whether two classes of this file are one, or one is made of the other."""
        return bool(one and other) and (one in self.lineage(other) or other in self.lineage(one))  # type: ignore[arg-type]

    def class_of(self, text: str, scope: Scope) -> Scope | None:
        """Return the class of this file of which an object is.

        That is `self`, ``Class()``, ``x = Class()``, ``x = Class.create()``, a function's result, or ``x: Class``;
        a parameter `trainer`, where the file has one class `Trainer`.
        """
        if text in {"self", "cls"}:
            return next((found.owner for found in scope.chain() if found.owner is not None), None)
        if text.endswith("()"):
            return self._made_by(text[:-2])
        bound = self.binding(text, scope)
        if bound is not None:
            return self._made_by(text_of(bound.value.func)) if isinstance(bound.value, ast.Call) else None
        if text not in scope.params:
            return None
        args: Any = getattr(scope.node, "args", None)
        told = next(
            (part.annotation for part in ast.walk(args) if isinstance(part, ast.arg) and part.arg == text), None
        )
        if told is not None:
            return self._made_by(ast.unparse(told).strip("'"))
        named = self.top.functions.get("".join(part.title() for part in text.split("_")))
        return named if named is not None and named.is_class else None

    def _made_by(self, name: str) -> Scope | None:
        """Return the class that a call of a name makes an object of: itself, a class method of it, or a function."""
        root, _, method = name.partition(".")
        found = self.top.functions.get(root)
        if found is not None and method:
            maker = found.functions.get(method) if found.is_class else None
            decorators = getattr(maker.node, "decorator_list", ()) if maker is not None else ()
            return found if any(text_of(each) == "classmethod" for each in decorators) else None
        if found is not None and found.is_function:
            value = found.returned[-1] if found.returned else None
            bound = found.bindings.get(text_of(value)) if isinstance(value, ast.Name) else None
            value = bound[0].value if bound else value
            found = self.top.functions.get(text_of(value.func)) if isinstance(value, ast.Call) else None
        return found if found is not None and found.is_class else None

    def local_function(self, call: Call) -> Scope | None:
        """Return the function of this file that a call calls: one it sees, a method, or what makes an object."""
        name = call.method
        owner: Scope | None
        if "." in call.text:
            owner = self.class_of(call.base, call.place.scope) if name in self.names else None
        else:
            scopes = (each for each in call.place.scope.chain() if not each.is_class)
            found = next((each.functions[name] for each in scopes if name in each.functions), None)
            if found is None or found.is_function:
                return found
            owner, name = found, "__init__"
        lineage = [] if owner is None else self.lineage(owner)
        return next((each.functions[name] for each in lineage if name in each.functions), None)

    def inside(self, call: Call) -> list[Call]:
        """Return the calls in the function of this file that a call calls; none if it calls no such function."""
        target = self.local_function(call)
        return [] if target is None else target.calls

    def scope_of(self, call: Call) -> tuple[Module, Scope] | None:
        """Return the function that a call calls, in this file or in another one that was given."""
        found = self.local_function(call)
        if found is not None:
            return self, found
        return self.find_function(call.name) if call.name and not call.name.startswith("?") else None

    def callers(self, scope: Scope) -> list[Call]:
        """Return the calls of a function in this file."""
        name = scope.owner.name if scope.name == "__init__" and scope.owner is not None else scope.name
        return [call for call in self.by_method.get(name, ()) if self.local_function(call) is scope]

    def outside_callers(self, scope: Scope) -> list[tuple[Module, Call]]:
        """Return the calls of a function, or of a class, at the top of this file in the given files that import it."""
        if scope.parent is not self.top or self.top.functions.get(scope.name) is not scope:
            return []
        path = Path(self.path)
        stem = path.parent.name if path.name == "__init__.py" else path.stem
        return [
            (user, call)
            for user in self.find_users()
            for call in user.methods(scope.name)
            if last(call.name.rpartition(".")[0]) == stem
        ]

    def given(self, scope: Scope, name: str) -> list[tuple[Call, ast.expr | None]]:
        """Return every call of a function in this file, and what it gives for a parameter; None: it is not seen.

        Those that hand it over to processes count, too: ``spawn(work, args=(size,))`` gives the number of each first.
        """
        index = scope.params.index(name) - (scope.params[0] in {"self", "cls"})
        found = [(call, call.argument(name, index)) for call in self.callers(scope)]
        for call in self.methods("spawn", "start_processes", "Process"):
            shift = call.method != "Process"  # these give the number of the process first
            target = call.argument("fn", 0) if shift else call.argument("target")
            if isinstance(target, ast.Name) and self.top.functions.get(target.id) is scope:
                parts = getattr(call.argument("args", 1 if shift else None), "elts", [])
                found.append((call, parts[index - shift] if 0 <= index - shift < len(parts) else None))
        return found

    def always_given(self, scope: Scope, node: ast.AST | None, fits: Callable[[ast.expr, Scope], bool]) -> bool:
        """Whether a node is a parameter for which every call of its function in this file gives something that fits."""
        if not isinstance(node, ast.Name) or node.id not in scope.params:
            return False
        parts = self.given(scope, node.id)
        return bool(parts) and all(part is not None and fits(part, call.place.scope) for call, part in parts)

    # Characters.

    def offset(self, line: int, column: int) -> int:
        """Return the place of a line (from 1) and a column (bytes of UTF-8, as `ast` counts) in the source."""
        if self._starts is None:
            self._starts = [0, *(found.end() for found in _NEWLINE.finditer(self.source))]
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.source)
        return start + len(self.source[start:end].encode()[:column].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> tuple[int, int]:
        """Return where the text of a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """Return the text of a node as it is written."""
        start, end = self.span(node)
        return self.source[start:end]

    def line_of(self, offset: int) -> tuple[int, int]:
        """Return the line and the column, both from 1, of a place in the source."""
        self.offset(1, 0)
        assert self._starts is not None
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def position(node: ast.AST) -> tuple[int, int]:
    """Return what sorts nodes by where they stand."""
    return node.lineno, node.col_offset  # type: ignore[attr-defined]
