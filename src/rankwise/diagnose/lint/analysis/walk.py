"""One walk over a file fills the tables of its `Module`; rules never walk it again."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from rankwise.diagnose.lint.analysis.guards import Side, is_main_word, side_of
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import called, last, nodes_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Branch, Call, Place, Scope

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_CHOICES = (ast.IfExp, ast.BoolOp)
_SPAWN = re.compile(r"\b(?:spawn|start_processes)\(\s*(?:fn\s*=\s*)?(\w+)")
_LOCAL_RANK = ast.Name("local_rank")
_ONLY_MAIN = ("rank_zero", "rank0", "main_process_only", "on_main_process", "master_only", "main_only", "master_only")


def read_module(path: str, source: str) -> Module:
    """Parse a file and fill its tables.

    Raises:
        SyntaxError: it is not Python of this version.
        ValueError: it holds null bytes.
    """
    module = Module(path, source, ast.parse(source, path))
    walker = _Walker(module)
    walker.block(module.tree.body, module.top.start)
    module.finish()
    return module


class _Walker:
    """Keeps what is open around the statement that is read: loops, branches, ``with`` and ``try`` blocks."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.scope = module.top
        # torch.multiprocessing.spawn gives the number of the process first, whatever the parameter is called
        spawned = set(_SPAWN.findall(module.source))
        top = [node for node in module.tree.body if isinstance(node, ast.FunctionDef) and node.args.args]
        self.numbers = {
            node.args.args[0].arg
            for node in top
            if node.name in spawned or any(arg.arg == "ngpus_per_node" for arg in node.args.args)
        }
        # what a helper answers: `def leads(): return dist.get_rank() == 0`
        classes = [part for node in module.tree.body if isinstance(node, ast.ClassDef) for part in node.body]
        self.returning = {
            node.name: node
            for node in (*module.tree.body, *classes)
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return)
        }
        self.properties = {
            name
            for name, node in self.returning.items()
            if any("property" in text_of(each) for each in node.decorator_list)
        }
        self.answers: dict[str, ast.expr | None] = {}

    def answer(self, name: str) -> ast.expr | None:
        """Return what a function returns in its last line."""
        if name not in self.answers:
            node = self.returning.get(name)
            self.answers[name] = None if node is None else _own_value(node, node.body[-1].value)  # type: ignore[attr-defined]
        return self.answers[name]

    def lookup(self, text: str) -> ast.expr | None:
        """Return what a variable was last bound to, or what a function without arguments returns, as far as is seen."""
        if text.endswith("()"):
            return self.answer(last(text[:-2]))
        bound = list(self.module.bindings_of(text, self.scope))
        if bound:
            # `main = rank == 0` where there are several ranks, else `main = True`
            others = [each for each in bound if not isinstance(each.shown, ast.Constant)]
            found = others[0] if others and is_main_word(last(text)) else bound[0]
            # `writer = None`, and under a test of the rank `writer = Writer()`: a choice of the two
            branch = found.place.branches[-1] if found.place.branches else None
            nothing = bound[1].value if len(bound) == 2 and branch is not None and branch.side == "main" else None
            if branch and branch.taken and found.value and isinstance(nothing, ast.Constant) and nothing.value is None:
                return ast.IfExp(branch.test, found.value, nothing)
            return found.shown
        if text in self.numbers:
            return _LOCAL_RANK
        if "." in text and last(text) in self.properties:
            return self.answer(last(text))
        if text.startswith("self.") and not any(each.owner for each in self.scope.chain()):
            fields = self.module.fields.get(text)  # of an object whose method was asked
            return fields[0].shown if fields else None
        return self.answer(text[5:]) if text.startswith("self.") else None

    def block(self, body: list[ast.stmt], around: Place) -> None:
        """Read statements in order; what follows ``if rank != 0: return`` runs on the main rank only."""
        branches = around.branches
        for index, stmt in enumerate(body):
            self.scope = around.scope
            place = Place(stmt, body, index, around.scope, around.loops, branches, around.withs, around.tries)
            kind = type(stmt)
            if kind is ast.Expr:
                self.scan(stmt.value, place)  # type: ignore[attr-defined]
            elif kind is ast.Assign:
                self.scan(stmt.value, place)  # type: ignore[attr-defined]
                for target in stmt.targets:  # type: ignore[attr-defined]
                    self.bind(target, stmt.value, place)  # type: ignore[attr-defined]
            elif kind is ast.If:
                branches = self.branch(stmt, place)  # type: ignore[arg-type]
            elif kind is ast.Import:
                self.module.imports.add_import(stmt)  # type: ignore[arg-type]
            elif kind is ast.ImportFrom:
                self.module.imports.add_from(stmt)  # type: ignore[arg-type]
            else:
                self.compound(stmt, place)

    def compound(self, stmt: ast.stmt, place: Place) -> None:
        """Read the rarer kinds of statements."""
        if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef):
            self.function(stmt, place)
        elif isinstance(stmt, ast.ClassDef):
            for part in (*stmt.decorator_list, *stmt.bases):
                self.scan(part, place)
            self.block(stmt.body, replace(self.open(stmt, place), branches=place.branches))
        elif isinstance(stmt, ast.For | ast.AsyncFor | ast.While):
            self.scan(stmt.test if isinstance(stmt, ast.While) else stmt.iter, place)
            if not isinstance(stmt, ast.While):
                self.bind(stmt.target, None, place)
            self.block(stmt.body, replace(place, loops=(*place.loops, stmt)))
            self.block(stmt.orelse, place)
        elif isinstance(stmt, ast.With | ast.AsyncWith):
            for item in stmt.items:
                self.scan(item.context_expr, place)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, item.context_expr, place)
            self.block(stmt.body, replace(place, withs=(*place.withs, stmt)))
        elif isinstance(stmt, ast.Try | ast.TryStar):
            inside = replace(place, tries=(*place.tries, stmt))
            for body in (stmt.body, *(handler.body for handler in stmt.handlers), stmt.orelse, stmt.finalbody):
                self.block(body, inside)
        elif isinstance(stmt, ast.Match):
            self.scan(stmt.subject, place)
            for case in stmt.cases:
                self.block(case.body, place)
        else:
            self.simple(stmt, place)

    def simple(self, stmt: ast.stmt, place: Place) -> None:
        """Read a statement without a body."""
        if isinstance(stmt, _ENDS):
            place.scope.exits.append(place)
        if isinstance(stmt, ast.AnnAssign | ast.AugAssign):
            self.bind(stmt.target, stmt.value if isinstance(stmt, ast.AnnAssign) else None, place)
        for part in ast.iter_child_nodes(stmt):
            if isinstance(part, ast.expr):
                self.scan(part, place)

    def branch(self, stmt: ast.If, place: Place) -> tuple[Branch, ...]:
        """Read an ``if``; return the branches that hold behind it."""
        self.scan(stmt.test, place)
        side = side_of(stmt.test, self.lookup)
        then = Branch(stmt.test, True, side, stmt)
        other = Branch(stmt.test, False, _away(stmt.test, side), stmt)
        self.module.branches.append(then)
        self.block(stmt.body, replace(place, branches=(*place.branches, then)))
        if stmt.orelse:
            self.block(stmt.orelse, replace(place, branches=(*place.branches, other)))
        elif _ends(stmt.body) and not isinstance(stmt.body[-1], ast.Raise):
            return (*place.branches, other)
        return place.branches

    def function(self, stmt: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        """Read a function; a decorator may keep it to the main rank."""
        for part in (*stmt.decorator_list, *stmt.args.defaults, *(found for found in stmt.args.kw_defaults if found)):
            self.scan(part, place)
        args = stmt.args
        names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg) if arg]
        start = self.open(stmt, place, tuple(names))
        for decorator in stmt.decorator_list:
            text = text_of(decorator.func if isinstance(decorator, ast.Call) else decorator).lower()
            if any(word in text for word in _ONLY_MAIN) or is_main_word(last(text)):
                start.branches = (Branch(decorator, True, "main", stmt),)
        self.block(stmt.body, start)

    def open(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, place: Place, params: tuple[str, ...] = ()
    ) -> Place:
        """Open a scope inside the one that is read; return its start."""
        scope = Scope(node.name, node, place.scope, place, params)
        self.module.scopes.append(scope)
        place.scope.functions[node.name] = scope
        return scope.start

    def bind(self, target: ast.expr, value: ast.expr | None, place: Place) -> None:
        """Note what a target is bound to; names of tuples are bound one by one where both sides show them."""
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            same = len(parts) == len(target.elts)
            given = [] if same or value is None else self.given(value)
            for index, part in enumerate(target.elts):
                self.bind(part, parts[index] if same else None, place)
                if len(given) == len(target.elts) and isinstance(part, ast.Name | ast.Attribute):
                    place.scope.bindings[text_of(part)][-1].seen = given[index]
            return
        if isinstance(target, ast.Subscript):
            self.scan(target, place)
        if not isinstance(target, ast.Name | ast.Attribute):
            return
        text = text_of(target)
        found = Binding(text, value, place)
        place.scope.bindings.setdefault(text, []).append(found)
        self.module.bindings.append(found)
        if "." in text:
            self.module.fields.setdefault(text, []).append(found)
        if not isinstance(target, ast.Name) or text in self.module.imports.bound:
            return
        # an alias at the top of the file is as good as an import
        if place.scope.parent is None and isinstance(value, ast.Attribute):
            name = self.module.imports.resolve(text_of(value))
            if name is not None:
                self.module.imports.bind(text, name)
        # so is `Loader = partial(DataLoader, num_workers=4)`, which has some of the arguments
        elif isinstance(value, ast.Call) and called(value) == "partial" and len(value.args) == 1:
            name = self.module.imports.resolve(text_of(value.args[0]))
            if name is not None and name.startswith("torch."):
                self.module.imports.bind(text, name)
                self.module.partials[text] = value.keywords

    def given(self, value: ast.expr) -> list[ast.expr | None]:
        """Return what a tuple of targets gets from a function of this file."""
        node = self.returning.get(called(value))
        parts = getattr(node.body[-1].value, "elts", []) if node is not None else []  # type: ignore[attr-defined]
        return [_own_value(node, part) for part in parts]  # type: ignore[arg-type]

    def choice(self, node: ast.IfExp | ast.BoolOp, place: Place) -> bool:
        """Read ``save() if rank == 0 else None`` and ``rank == 0 and save()``; False where no rank decides."""
        test = node.test if isinstance(node, ast.IfExp) else node.values[0]
        side = side_of(test, self.lookup)
        if side is None:
            return False
        away = _away(test, side)
        self.scan(test, place)
        if isinstance(node, ast.IfExp):
            parts = [(node.body, True, side), (node.orelse, False, away)]
        else:
            taken = isinstance(node.op, ast.And)
            parts = [(part, taken, side if taken else away) for part in node.values[1:]]
        for part, taken, of in parts:
            self.scan(part, replace(place, branches=(*place.branches, Branch(test, taken, of, place.stmt))))
        return True

    def scan(self, root: ast.expr, place: Place) -> None:
        """Find the calls, subscripts and strings of an expression."""
        module = self.module
        stack: list[ast.AST] = [root]
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                continue
            if kind is ast.Constant:
                if type(node.value) is str:  # type: ignore[attr-defined]
                    module.strings.append((node, place))  # type: ignore[arg-type]
            elif kind is ast.Attribute:
                module.attributes.add(node.attr)  # type: ignore[attr-defined]
                stack.append(node.value)  # type: ignore[attr-defined]
            elif kind is ast.Call:
                func = node.func  # type: ignore[attr-defined]
                module.calls.append(Call(node, text_of(func), place))  # type: ignore[arg-type]
                if type(func) is not ast.Name:
                    stack.append(func)
                stack.extend(node.args)  # type: ignore[attr-defined]
                stack.extend(word.value for word in node.keywords)  # type: ignore[attr-defined]
            elif kind in _CHOICES and self.choice(node, place):  # type: ignore[arg-type]
                continue
            else:
                if kind is ast.NamedExpr:
                    self.bind(node.target, node.value, place)  # type: ignore[attr-defined]
                if kind is ast.Subscript and text_of(node.value).endswith("environ"):  # type: ignore[attr-defined]
                    module.environment.append((node, place))  # type: ignore[arg-type]
                for name in node._fields:
                    value = getattr(node, name)
                    if isinstance(value, list):
                        stack.extend(part for part in value if isinstance(part, ast.AST))
                    elif isinstance(value, ast.AST):
                        stack.append(value)


def _own_value(node: ast.FunctionDef, part: ast.expr | None) -> ast.expr | None:
    """Return the value of a variable that a function binds itself; of several the first that is no constant."""
    if not isinstance(part, ast.Name):
        return part
    found = [
        each.value
        for each in nodes_in(node)
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == part.id for t in each.targets)
    ]
    return next((value for value in found if not isinstance(value, ast.Constant)), part)


def _ends(body: list[ast.stmt]) -> bool:
    """Whether control never reaches the end of a body."""
    end = body[-1]
    if isinstance(end, _ENDS):
        return True
    if isinstance(end, ast.Expr) and isinstance(end.value, ast.Call):
        return text_of(end.value.func) in {"sys.exit", "exit", "quit", "os._exit"}
    return False


def _away(test: ast.expr, side: Side | None) -> Side | None:
    """Return the side of the branch not taken: of a chain only where the rank alone decides."""
    if side is None or isinstance(test, ast.BoolOp | ast.BinOp):
        return None
    return "other" if side == "main" else "main"
