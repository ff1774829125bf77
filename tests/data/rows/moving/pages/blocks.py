"""Every block of code in annbatch's documentation: in fences, in cells of notebooks, behind prompts in docstrings."""

import json
import re
import tarfile
import textwrap
from typing import NamedTuple

FENCED = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)
PROMPTED = re.compile(r"^( *)>>> .*?(?=\n[ ]*\n|\n[ ]*\"\"\"|\Z)", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^( *(?:from|import) )annbatch\b", re.MULTILINE)
SHELL = re.compile(r"^!((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
FILE = re.compile(r"%%writefile (\S+)\n(.*)", re.DOTALL)


class Block(NamedTuple):
    """One piece of code as it stands there."""

    page: str
    number: int  # of the fenced block or example in its file, or of the cell in its notebook; from 0
    kind: str  # what a fence says it is, "cell" or "prompt"
    text: str
    output: str | None  # what a cell is stored to have printed


def read_blocks(archive):
    """Return the blocks of all pages, in their order."""
    with tarfile.open(archive) as held:
        texts = {
            member.name.partition("/")[2]: held.extractfile(member).read().decode()
            for member in held.getmembers()
            if member.isfile() and member.name.endswith((".md", ".ipynb", ".py"))
        }
    found = []
    for page, text in sorted(texts.items()):
        if page.endswith(".ipynb"):
            found += cells(page, json.loads(text))
        elif page.endswith(".md"):
            found += fenced(page, text)
        elif page.startswith("src/"):
            found += prompted(page, text)
    return found


def fenced(page, text):
    return [
        Block(page, number, kind.strip(), textwrap.dedent(code), None)
        for number, (_, kind, code) in enumerate(FENCED.findall(text))
    ]


def cells(page, notebook):
    return [
        Block(page, number, "cell", "".join(cell["source"]), printed(cell))
        for number, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code"
    ]


def printed(cell):
    streams = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream" and out["name"] == "stdout"]
    text = "".join(line for lines in streams for line in lines).replace("\r\n", "\n")  # shells end lines so
    return text if streams else None


def prompted(page, text):
    """Examples with prompts; lines without one belong to the statement before (one docstring writes it so)."""
    return [
        Block(page, number, "prompt", re.sub(rf"^{found[1]}(>>> |\.\.\. ?|)", "", found[0], flags=re.MULTILINE), None)
        for number, found in enumerate(PROMPTED.finditer(text))
    ]


def as_python(text):
    """What a notebook executes: files that cells write and commands of the shell are calls; the import is another."""
    text = IMPORT.sub(r"\1rankwise.data.rows", text)
    if written := FILE.fullmatch(text):
        return f"write_file({written[1]!r}, {written[2]!r})"
    return SHELL.sub(lambda found: f"run_shell({found[1]!r})", text)
