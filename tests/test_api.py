"""The API reference: every public name has its entry, and nothing else has one."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of the pages, and what was documented; a warning of the tool fails it."""
    spec = importlib.util.spec_from_file_location("build_api", ROOT / "docs" / "build_api.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    folder = tmp_path_factory.mktemp("api")
    return folder, program.build(folder)


def test_every_public_name_has_its_docstring(reference):
    """Names of `__all__`, and public methods of classes among them: each is told what it does."""
    _, modules = reference
    silent = []
    for name, module in modules.items():
        assert module.docstring, name
        listed = set(sys.modules[name].__all__) - {"__version__"}
        assert listed <= {member.name for member in module.members.values()}, name
        for member in (module.members[found] for found in listed):
            if member.kind != "variable" and not member.docstring:
                silent.append(member.fullname)
            if member.kind == "class":
                own = (part for part in member.own_members if part.kind == "function" and part.name[0] != "_")
                silent += [part.fullname for part in own if not part.docstring]
    assert not silent


def test_each_page_shows_its_names_and_the_index_leads_there(reference):
    """A heading for each name; the index links every page; no private module is on any of them."""
    folder, modules = reference
    index = (folder / "index.html").read_text()
    for name, module in modules.items():
        page = (folder / f"{name}.html").read_text()
        assert f'href="{name}.html"' in index
        assert all(f'id="{member.name}"' in page for member in module.members.values() if member.name != "__version__")
        assert not module.submodules or {sub.fullname for sub in module.submodules} <= set(modules)


def shown_imports():
    """What the pages, the README and the examples import of rankwise: place, module, name."""
    blocks = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [(page.name, block) for page in pages for _, block in blocks.findall(page.read_text())]
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in (ROOT / "examples").rglob("*.py")]
    for place, text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rankwise":
                yield from ((place, node.module, alias.name) for alias in node.names)


def test_what_is_shown_to_users_is_public(reference):
    """Pages and examples import nothing that the reference does not name."""
    _, modules = reference
    found = list(shown_imports())
    assert len(found) > 100
    private = [
        (place, module, name)
        for place, module, name in found
        if f"{module}.{name}" not in modules and name not in getattr(sys.modules.get(module), "__all__", ())
    ]
    private += [
        (place, module, "") for place, module, name in found if module not in modules and module != "rankwise.data"
    ]
    assert private == []
