"""Where source text comes from: folders that are walked, encodings, notebooks whose cells are joined."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath

from rankwise.diagnose.lint.analysis.launch_lines import Kind, kind_of
from rankwise.diagnose.lint.settings import Settings
from rankwise.errors import ConfigError

# Folders of tools, of environments and of what was built; hidden ones are left out, too.
_SKIPPED = {"__pycache__", "build", "dist", "node_modules", "site-packages", "venv", "env", "wandb", "mlruns", "_build"}
_MAGIC = re.compile(r"^(\s*)(%{1,2}[A-Za-z].*|[!?].*|\S.*\?\s*)$")
_ASSIGNED = re.compile(r"^(\s*[A-Za-z_][\w.,\s\[\]]*=\s*)[%!].*$")  # files = !ls
_WRITES_A_FILE = re.compile(r"\s*%%(?:writefile|file)\s+(?:-\w+\s+)*\S+\.py[ \t]*(?=\n)")
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%px")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as rules see it.

    Attributes:
        path: as it was given, for messages.
        source: its text; of a notebook, its cells joined by line breaks.
        launch: how its launch lines are read, None for Python.
        cells: of a notebook, the first line of each code cell and the cell's number, both from 1.
        encoding: to write it back.
        written: the Python files that cells of a notebook write (``%%writefile train.py``), each a script of its own.
    """

    path: str
    source: str
    launch: Kind | None = None
    cells: tuple[tuple[int, int], ...] = ()
    encoding: str = "utf-8"
    written: tuple[SourceFile, ...] = ()

    @property
    def fixable(self) -> bool:
        """Whether edits of the text are edits of the file."""
        return not self.cells and not self.path.endswith(".ipynb")

    def place_of(self, line: int) -> tuple[int, int | None]:
        """Return the line inside its cell, and the cell; the line itself where there are no cells."""
        found = [cell for cell in self.cells if cell[0] <= line]
        return (line - found[-1][0] + 1, found[-1][1]) if found else (line, None)


def find_files(paths: Sequence[Path], settings: Settings) -> Iterator[Path]:
    """Yield the files to check: those given, and in folders the Python, notebook, shell, Docker and YAML files.

    Raises:
        ConfigError: a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise ConfigError(f"no file or folder {str(path)!r} in {Path.cwd()}")
        for found in _walk(path, settings) if path.is_dir() else [path]:  # a pipe, too: rankwise lint <(...)
            real = found.resolve()
            if real not in seen:
                seen.add(real)
                yield found


def _walk(folder: Path, settings: Settings) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED
            and not name.startswith(".")
            and not (here / name / "pyvenv.cfg").exists()
            and not _excluded(here / name, settings)
        )
        for name in sorted(files):
            path = here / name
            suffix = path.suffix.lower()
            if (suffix in {".py", ".ipynb"} or kind_of(path)) and not _excluded(path, settings) and path.is_file():
                yield path


def _excluded(path: Path, settings: Settings) -> bool:
    return any(fnmatch(path.as_posix(), pattern) or fnmatch(path.name, pattern) for pattern in settings.exclude)


def read_source(path: Path) -> SourceFile:
    """Read a file in the encoding that it names.

    Raises:
        OSError: it cannot be read.
        ValueError: its bytes are not of its encoding, or a notebook is none.
    """
    content = path.read_bytes()
    suffix = path.suffix.lower()
    if suffix == ".ipynb":
        return _notebook(str(path), content)
    head = content[:200].decode("utf-8", errors="replace").partition("\n")[0]
    launch = None if suffix in {".py", ".pyw"} else kind_of(path, head)
    if launch is not None:
        return SourceFile(str(path), content.decode("utf-8", errors="replace"), launch)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceFile(str(path), content.decode(encoding), None, (), encoding)
    except SyntaxError as error:
        raise ValueError(f"{error.msg}: what is not utf-8 names its encoding in its first line") from None
    except LookupError as error:  # a codec between other things than bytes and text, such as rot13
        raise ValueError(str(error).partition(";")[0]) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not {error.encoding}; name the encoding in its first line") from None


def source_from_text(text: str, path: str = "script.py") -> SourceFile:
    """Return a text as if it were read from a file of that name."""
    if path.endswith(".ipynb"):
        return _notebook(path, text.encode())
    return SourceFile(path, text, None if path.endswith(".py") else kind_of(PurePath(path), text.partition("\n")[0]))


def _notebook(path: str, content: bytes) -> SourceFile:
    """Join the code cells; lines that are not Python (magics, shell) become ``pass``."""
    try:
        book = json.loads(content)
        cells = book.get("cells") or [cell for sheet in book.get("worksheets", ()) for cell in sheet["cells"]]
        texts = [(number, cell) for number, cell in enumerate(cells, 1) if cell.get("cell_type") == "code"]
        lines: list[str] = []
        starts = []
        written = []
        for number, cell in texts:
            source = cell.get("source", cell.get("input", ""))
            body = "".join(source) if isinstance(source, list) else source
            starts.append((len(lines) + 1, number))
            if found := _WRITES_A_FILE.match(body):
                # the magic's own line stays as an empty one, so that lines count as in the cell
                text = body[found.start() :].partition("\n")[2]
                blank = "\n" * (body.count("\n", 0, found.start()) + 1)
                written.append(SourceFile(path, f"{blank}{text}\n", None, ((1, number),)))
            lines += _without_magics(body.split("\n"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"no notebook: it is no JSON ({error})") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no notebook: its JSON holds no cells of one ({type(error).__name__}: {error})") from None
    return SourceFile(path, "\n".join(lines) + "\n", None, tuple(starts), written=tuple(written))


def _without_magics(lines: list[str]) -> list[str]:
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_PYTHON_CELLS):
        return ["" for _ in lines]
    with contextlib.suppress(SyntaxError, ValueError):  # a line that begins with % may be an expression's
        ast.parse("\n".join(lines))
        return lines
    kept: list[str] = []
    goes_on = False  # the magic above ends in a backslash
    for line in lines:
        found, assigned = _MAGIC.match(line), _ASSIGNED.match(line)
        magic = found is not None and (found[2][0] in "%!?" or re.fullmatch(r"[\w.]+\?{1,2}", found[2].strip()))
        if goes_on:
            kept.append("")
        elif assigned:
            kept.append(f"{assigned[1]}None")
        else:
            kept.append(f"{found[1]}pass" if magic and found else line)
        goes_on = bool(goes_on or magic or assigned) and line.endswith("\\")
    return kept
