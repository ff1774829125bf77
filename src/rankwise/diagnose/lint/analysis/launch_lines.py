"""Launch lines outside Python (shell, sbatch, Dockerfile, YAML) as words with their places; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

__all__ = ["Command", "LaunchFile", "LaunchPlace", "Setting", "kind_of", "read_launch_file"]

Kind = Literal["shell", "dockerfile", "yaml"]

_WORD = re.compile(
    r"""(?:\$\(\([^)]*\)\)|[^\s;&|<>"'\\()`]|\\.|"(?:[^"\\]|\\.)*"|'[^']*'|\$\([^)]*\))+|&&|\|\||[;&|()`]""", re.DOTALL
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_YAML_NAME = re.compile(r"""^\s*(?:-\s+)?["']?name["']?\s*:\s*["']?([A-Z][A-Z0-9_]*)["']?\s*$""")
_YAML_VALUE = re.compile(r"""^\s*["']?value["']?\s*:\s*(.+?)\s*$""")
_YAML_PAIR = re.compile(r"""^\s*(?:-\s+)?["']?([A-Z][A-Z0-9_]*)["']?\s*:\s+(\S.*?)\s*$""")
_YAML_HEAD = re.compile(r"""^\s*(?:-\s+)?(?:["']?[A-Za-z_][\w.-]*["']?\s*:\s+|-\s+)?[|>]?[-+]?""")
_DOCKER_HEAD = re.compile(r"^\s*(RUN|CMD|ENTRYPOINT|ENV)\s+", re.IGNORECASE)
_SBATCH = re.compile(r"#SBATCH\s+--?([A-Za-z-]+)(?:[=\s]+(\S+))?")
_SEPARATORS = {"&&", "||", ";", "&", "|", "(", ")", "`"}
_LAUNCHER_HINT = re.compile(r"torchrun|torch[./]distributed|rankwise|accelerate|srun|mpirun|NCCL|MASTER_PORT|GLOO")


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """A word and where it stands: offsets of characters in the source, and its text without quotes."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable that is set, and its value."""

    name: str
    value: str
    place: LaunchPlace


@dataclass(slots=True)
class Command:
    """One command: its words (assignments before it excluded) and what is set for it alone."""

    words: list[LaunchPlace]
    settings: list[Setting] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]

    def option(self, *names: str) -> tuple[str, LaunchPlace] | None:
        """Return the value of an option and its place; ``-`` and ``_`` are the same in its name."""
        wanted = {name.replace("_", "-") for name in names}
        for index, word in enumerate(self.words):
            name, equals, value = word.text.partition("=")
            if name.startswith("-") and name.replace("_", "-") in wanted:
                if equals:
                    return value, word
                if index + 1 < len(self.words):
                    return self.words[index + 1].text, self.words[index + 1]
        return None

    def find(self, *programs: str) -> int | None:
        """Return the index of the word that is one of the programs, whatever its folder."""
        for index, word in enumerate(self.words):
            if word.text.rpartition("/")[2] in programs:
                return index
        return None


@dataclass(slots=True)
class LaunchFile:
    """The commands, the variables that are set, and the ``#SBATCH`` options of one file."""

    path: str
    source: str
    kind: Kind
    commands: list[Command] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    sbatch: dict[str, str] = field(default_factory=dict)


def kind_of(path: PurePath, first_line: str = "") -> Kind | None:
    """Return how a file is read, by its name, or by its ``#!`` where it has no ending."""
    name = path.name.lower()
    if path.suffix.lower() in {".sh", ".bash", ".sbatch", ".slurm", ".zsh"}:
        return "shell"
    if name == "dockerfile" or name.startswith("dockerfile.") or name.endswith(".dockerfile"):
        return "dockerfile"
    if path.suffix.lower() in {".yaml", ".yml"}:
        return "yaml"
    return "shell" if not path.suffix and re.match(r"#!.*\b(ba|z)?sh\b", first_line) else None


def read_launch_file(path: str, source: str, kind: Kind) -> LaunchFile:
    """Find the commands and settings of a file; one without any launcher or NCCL word has none."""
    file = LaunchFile(path, source, kind)
    if not _LAUNCHER_HINT.search(source):
        return file
    waiting: str | None = None
    for start, line in _logical_lines(source):
        found = _SBATCH.match(line)
        if found:
            file.sbatch[_LONG.get(found[1], found[1])] = found[2] or ""
            continue
        if kind == "yaml":
            waiting, done = _yaml_setting(file, start, line, waiting)
            if not done:
                head = _YAML_HEAD.match(line)
                skip = head.end() if head else 0
                _read_words(file, start + skip, line[skip:], flow=True)
        elif kind == "dockerfile":
            _docker_line(file, start, line)
        else:
            _read_words(file, start, line, flow=False)
    return file


_LONG = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition"}


def _logical_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield lines joined over a backslash at their end; the backslash becomes blanks, so that places stay."""
    start, text = 0, ""
    for line in source.splitlines(keepends=True):
        body = line.rstrip("\r\n")
        if body.endswith("\\"):
            text += body[:-1] + " " * (len(line) - len(body) + 1)
            continue
        yield start, text + body
        start += len(text) + len(line)
        text = ""
    if text:
        yield start, text


def _read_words(file: LaunchFile, start: int, line: str, *, flow: bool) -> None:
    """Read one line of shell; in YAML and Docker lists brackets and commas part words, too."""
    if flow:
        line = re.sub(r"""[\[\],"']""", " ", line)
    command = Command([])
    for found in _WORD.finditer(line):
        word = found[0]
        if word.startswith("#"):
            break
        if word in _SEPARATORS:
            _close(file, command)
            command = Command([])
            continue
        place = LaunchPlace(start + found.start(), start + found.end(), _unquoted(word))
        assignment = _ASSIGNMENT.fullmatch(word)
        exporting = bool(command.words) and command.words[0].text in {"export", "env", "declare", "local", "readonly"}
        if assignment and (not command.words or exporting):
            setting = Setting(assignment[1], _unquoted(assignment[2]), place)
            command.settings.append(setting)
            file.settings.append(setting)
        else:
            command.words.append(place)
    _close(file, command)


def _close(file: LaunchFile, command: Command) -> None:
    if command.words or command.settings:
        file.commands.append(command)


def _unquoted(word: str) -> str:
    return re.sub(r"""\\(.)|["']""", lambda found: found[1] or "", word)


def _yaml_setting(file: LaunchFile, start: int, line: str, waiting: str | None) -> tuple[str | None, bool]:
    """Read ``NAME: value``, or ``name: NAME`` with ``value: ...`` on the next line. Returns the name that waits."""
    if name := _YAML_NAME.match(line):
        return name[1], True
    value = _YAML_VALUE.match(line)
    if waiting and value:
        _add(file, waiting, value[1], start + value.start(1))
        return None, True
    if pair := _YAML_PAIR.match(line):
        _add(file, pair[1], pair[2], start + pair.start(1))
        return None, True
    return (waiting if not line.strip() else None), False


def _docker_line(file: LaunchFile, start: int, line: str) -> None:
    head = _DOCKER_HEAD.match(line)
    if head is None:
        return
    rest, skip = line[head.end() :], head.end()
    old = re.match(r"([A-Z_][A-Z0-9_]*)\s+([^=\s].*)$", rest)
    if head[1].upper() == "ENV" and old:
        _add(file, old[1], old[2], start + skip)
        return
    _read_words(file, start + skip, rest, flow=rest.lstrip().startswith("["))


def _add(file: LaunchFile, name: str, value: str, start: int) -> None:
    text = value.split(" #", maxsplit=1)[0].strip().strip("\"'")
    file.settings.append(Setting(name, text, LaunchPlace(start, start + len(name), name)))
