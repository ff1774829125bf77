"""The API reference: every public name has its entry, and nothing else has one."""

import importlib.util
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
