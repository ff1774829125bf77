"""Launch lines outside Python (shell, sbatch, Dockerfile, YAML) as words with their places; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

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
_SBATCH = re.compile(r"(?:^|\s)(?:--([A-Za-z-]+)(?:[=\s]\s*([^\s#-]\S*))?|-([A-Za-z])[=\s]?\s*([^\s#-]\S*)?)")
_LIST_OR_WORD = re.compile(rf"\w+\+?=\((?:[^()]|\$\([^)]*\))*\)|{_WORD.pattern}|\n", re.DOTALL)
_SEPARATORS = {"&&", "||", ";", "&", "|", "(", ")", "`", "\n"}
_LAUNCHER_HINT = re.compile(
    r"torchrun|torch[./]distributed|rankwise|accelerate|srun|mpirun|NCCL|MASTER_PORT|GLOO|num_processes:"
)
# programs that run the text in one of their words, and those that hand on variables that are given to them
_CARRIERS = {"bash", "sh", "ssh", "srun", "pdsh", "eval", "mpirun", "mpiexec", "docker", "nohup", "timeout", "exec"}
_OPEN_VALUE = re.compile(r"""\s*(?:(?:export|local|declare|readonly)\s+(?:-\w+\s+)?)?\w+\+?=[("']""")
_MOST_JOINED = 60
_YAML_FLOW = re.compile(r"""\{\s*name:\s*["']?([A-Z][A-Z0-9_]*)["']?\s*,\s*value:\s*["']?([^"',}]+)""")
_YAML_OPTION = re.compile(r"""([a-z]\w*)\s*:\s+["']?([^\s"'#][^"'#]*?)["']?\s*(?:#.*)?$""")


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
    """One command: its words (assignments before it excluded), what is set for it alone, and the operator behind it.

    A command inside a quoted word of another (``bash -c 'torchrun ...'``) has that one's words in front of its own.
    `added` holds the options that variables of the file bring, as they stand where the variable is set.
    """

    words: list[LaunchPlace]
    settings: list[Setting] = field(default_factory=list)
    end: str = ""
    quote: str = ""
    added: list[LaunchPlace] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]

    def option(self, *names: str) -> tuple[str, LaunchPlace] | None:
        """Return the value of an option and its place; ``-`` and ``_`` are the same in its name."""
        wanted = {name.replace("_", "-") for name in names}
        words = [*self.words, *self.added]
        for index, word in enumerate(words):
            name, equals, value = word.text.partition("=")
            if name.startswith("-") and name.replace("_", "-") in wanted:
                if equals:
                    return value, word
                if index + 1 < len(words):
                    return words[index + 1].text, words[index + 1]
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
    if kind == "yaml" and re.search("^(compute_environment|distributed_type):", source, re.MULTILINE):
        _read_options(file)
        return file
    for start, line in _logical_lines(source, whole=kind == "shell"):
        if line.startswith("#SBATCH"):
            for found in _SBATCH.finditer(line[7:].partition(" #")[0]):
                name = found[1] or found[3]
                file.sbatch[_LONG.get(name, name)] = found[2] or found[4] or ""
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
    _spread(file)
    return file


_LONG = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "t": "time",
    "p": "partition",
    "G": "gpus",
    "tasks-per-node": "ntasks-per-node",
}


def _read_options(file: LaunchFile) -> None:
    """Read a configuration of Accelerate as the command line that says the same."""
    words: list[LaunchPlace] = []
    for start, line in _logical_lines(file.source):
        found = _YAML_OPTION.match(line)
        if found is None:
            continue
        end = start + found.end(2)
        if not words:
            words = [LaunchPlace(start, end, "accelerate"), LaunchPlace(start, end, "launch")]
        words += [LaunchPlace(start, end, f"--{found[1]}"), LaunchPlace(start, end, found[2])]
    if "use_cpu: true" not in file.source:
        file.commands.append(Command(words))


def _spread(file: LaunchFile) -> None:
    """Give each command what the variables in it hold: ``torchrun $ARGS train.py``, ``"${ARGS[@]}"``, ``$LAUNCHER``."""
    lists = {each.name: each for each in file.settings if _HOLDS.match(each.value)}
    for command in file.commands if lists else ():
        script = next((at for at, word in enumerate(command.words) if word.text.endswith(".py")), None)
        for word in command.words[:script]:
            named = re.fullmatch(r"\$\{?(\w+)(?:\[[@*]\])?\}?", word.text)
            each = lists.get(named[1]) if named else None
            if each is None:
                continue
            start, text = each.place.start, file.source[each.place.start : each.place.end]
            parts = [
                LaunchPlace(start + part.start(), start + part.end(), _unquoted(part[0]))
                for part in _OPTION_WORD.finditer(text, text.find("=") + 1)
            ]
            # the launcher starts where its variable stands
            first = next((at for at, part in enumerate(parts) if part.text.startswith("--")), len(parts))
            at = command.words.index(word)
            head = [LaunchPlace(word.start, word.end, part.text) for part in parts[:first]]
            command.words[at : at + 1] = head or [word]
            command.added += parts[first:]


_HOLDS = re.compile(r"[(\s]*(-|torchrun\s|accelerate\s+launch\s|python[\d.]*\s+-m\s+torch\.distributed\.run\s)")
_OPTION_WORD = re.compile(r"""(?:\$\([^)]*\)|\\[^\r\n]|[^\s()"'\\])+""")


def _logical_lines(source: str, *, whole: bool = False) -> Iterator[tuple[int, str]]:
    """Yield lines joined over a backslash at their end; the backslash becomes blanks, so that places stay.

    With `whole`, also those of a list or a quoted text that is set over several lines, or that ``bash -c`` is given.
    """
    start, text, more = 0, "", 0
    lines = source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        body = line.rstrip("\r\n")
        if body.endswith("\\"):
            text += body[:-1] + " " * (len(line) - len(body) + 1)
            continue
        if whole and not more and (_OPEN_VALUE.match(text + body) or _OPEN_TEXT.search(text + body)):
            more = _lines_to_end(text + body, lines[number + 1 : number + _MOST_JOINED])
        if more:
            more -= 1
            text += body + "\n".rjust(len(line) - len(body))
            continue
        yield start, text + body
        start += len(text) + len(line)
        text = ""
    if text:
        yield start, text


_OPEN_TEXT = re.compile(r"""\b(?:(?:bash|sh)\s+-\w*c|ssh\s.*)\s+["'][^"']*$""")


def _lines_to_end(text: str, following: list[str]) -> int:
    """Return how many lines further a quote, or the bracket of a list, that is open is closed; 0 if never."""
    for number, line in enumerate(["", *following]):
        text += line
        bare = re.sub(r"""\\.|"(?:[^"\\]|\\.)*"|'[^']*'""", "", text, flags=re.DOTALL)
        if (
            "'" not in bare
            and '"' not in bare
            and (not re.search(r"=\(", bare) or ")" in re.split(r"=\(", bare, maxsplit=1)[1])
        ):
            return number
    return 0


def _read_words(
    file: LaunchFile, start: int, line: str, *, flow: bool, before: Sequence[LaunchPlace] = (), quote: str = ""
) -> None:
    """Read one line of shell; in YAML and Docker lists brackets and commas part words, too.

    `before` are the words of the program that is given the line as text, `quote` is how that is quoted.
    """
    if flow:
        line = re.sub(r"""[\[\],"']""", " ", line)
    command = Command([], quote=quote)
    silent = False
    for found in _LIST_OR_WORD.finditer(line):
        word = found[0]
        silent = word != "\n" and (silent or word.startswith("#"))
        if silent:
            continue
        if word in _SEPARATORS:
            command.end = word
            _close(file, command, before)
            command = Command([], quote=quote)
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
    _close(file, command, before)


def _close(file: LaunchFile, command: Command, before: Sequence[LaunchPlace]) -> None:
    if not command.words and not command.settings:
        return
    carried = [word for word in command.words if re.search(r"\s", word.text.strip())]
    carrier = bool(carried) and any(word.text.rpartition("/")[2] in _CARRIERS for word in command.words[:4])
    words, command.words = command.words, [*before, *command.words]
    file.commands.append(command)
    for word in carried if carrier and not before else ():
        raw = file.source[word.start : word.end]
        if raw[0] in "\"'" and _LAUNCHER_HINT.search(raw):
            text = re.sub(r"\\\r?\n", lambda found: " " * len(found[0]), raw[1:-1])
            _read_words(file, word.start + 1, text, flow=False, before=words[: words.index(word)], quote=raw[0])


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
    for each in _YAML_FLOW.finditer(line):
        _add(file, each[1], each[2], start + each.start(1))
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
