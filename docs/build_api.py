"""Build the API reference: one page for each public package, out of its docstrings.

python docs/build_api.py [FOLDER]

Writes HTML into FOLDER (build/api). The pages hold what the packages list in `__all__`, nothing else: the modules
inside are not public, whatever their names.
"""

from __future__ import annotations

import html
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pdoc.doc
import pdoc.render

PACKAGES = (
    "rankwise",
    "rankwise.checkpoint",
    "rankwise.data.contract",
    "rankwise.data.crops",
    "rankwise.data.order",
    "rankwise.data.rows",
    "rankwise.data.rows.abc",
    "rankwise.data.rows.samplers",
    "rankwise.data.rows.types",
    "rankwise.data.samples",
    "rankwise.data.store",
    "rankwise.data.store.remote",
    "rankwise.diagnose",
    "rankwise.diagnose.doctor",
    "rankwise.diagnose.explain",
    "rankwise.diagnose.lint",
    "rankwise.diagnose.profile",
    "rankwise.diagnose.report",
    "rankwise.errors",
    "rankwise.guard",
    "rankwise.metrics",
    "rankwise.testing",
    "rankwise.tracking",
    "rankwise.train",
    "rankwise.world",
)


_INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rankwise: API reference</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em }}
td {{ padding: .2em 1.5em .2em 0; vertical-align: top }}</style></head>
<body><h1>rankwise: API reference</h1>
<p>One page for each public package. What these pages do not name is not public.</p>
<table>{rows}</table></body></html>
"""


def build(folder: Path) -> dict[str, pdoc.doc.Module]:
    """Write the pages and their index; return what was documented, by package."""
    folder.mkdir(parents=True, exist_ok=True)
    pdoc.render.configure(docformat="google", show_source=False, footer_text="rankwise")
    modules = {name: pdoc.doc.Module(_whole(name)) for name in PACKAGES}
    for name, module in modules.items():
        (folder / f"{name}.html").write_text(pdoc.render.html_module(module, all_modules=modules))
    rows = "".join(
        f'<tr><td><a href="{name}.html"><code>{name}</code></a></td>'
        f"<td>{html.escape(module.docstring.partition(chr(10))[0])}</td></tr>\n"
        for name, module in modules.items()
    )
    (folder / "index.html").write_text(_INDEX.format(rows=rows))
    return modules


def _whole(package: str) -> ModuleType:
    """Import a package with all its names: many are loaded when they are first used, pdoc looks at what is there."""
    module = importlib.import_module(package)
    for name in module.__all__:
        getattr(module, name)
    return module


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "build/api")
    build(where)
    print(f"{len(PACKAGES)} pages in {where}")
