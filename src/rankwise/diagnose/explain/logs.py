"""Search logs of any size for known messages, and return those nearest to the root first."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from rankwise.diagnose.explain.catalogue import LEVELS, MESSAGES, Message
from rankwise.errors import ConfigError

_CHUNK_BYTES = 1 << 20
_CONTEXT_BYTES = 1 << 14  # kept of the previous chunk, for the traceback above a chunk's first line
_MAX_FRAMES = 16  # tracebacks are searched only for the first lines of a message
_MAX_PLACES = 5
_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # of progress bars: they would overwrite the line on a terminal
# What launchers put before a line: torchrun ([rank3]:, [default1]:), srun --label (3: ), mpirun ([1,3]<stdout>:).
_PREFIX = re.compile(
    r"^\s*(?:\[(?:rank|default)?(\d{1,9})\]:?\s?|(\d{1,9}): |\[\d+,(\d{1,9})\]<std(?:out|err)>:|\[rank (\d{1,9})\] ?)",
    re.IGNORECASE,
)
_RANK = re.compile(r"\[(?:[^\[\]]* )?rank:? ?(\d{1,9})\]", re.IGNORECASE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]lib[/\\]python\d|^<")


@dataclass(slots=True, kw_only=True)
class Finding:
    """A message of the catalogue that occurs in the logs.

    Attributes:
        message: its record.
        text: the first matching line, without the launcher's prefix.
        count: number of matching lines.
        ranks: ranks that logged it, as far as known.
        places: the first few ``file:line`` of the logs.
        frames: the first few ``file:line`` of the script nearest above.
        order: number of the first matching line among all lines.
    """

    message: Message
    text: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    places: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    order: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, object]:
        """Return the finding as JSON values."""
        message = self.message
        return {
            "slug": message.slug,
            "text": self.text,
            "count": self.count,
            "ranks": sorted(self.ranks),
            "places": self.places,
            "frames": self.frames,
            "meaning": message.meaning,
            "causes": list(message.causes),
            "mends": list(message.mends),
            "source": message.source,
        }


def _by_text() -> dict[bytes, list[Message]]:
    found: dict[bytes, list[Message]] = {}
    for message in MESSAGES:
        for text in message.texts:
            found.setdefault(text.encode(), []).append(message)
    return found


_BY_TEXT = _by_text()


def candidates(chunk: bytes) -> dict[int, list[Message]]:
    """Return candidate messages by the start of a line in the chunk; the search for plain text skips most of a log."""
    found: dict[int, list[Message]] = {}
    for text, messages in _BY_TEXT.items():
        at = chunk.find(text)
        while at >= 0:
            found.setdefault(chunk.rfind(b"\n", 0, at) + 1, []).extend(messages)
            end = chunk.find(b"\n", at)
            at = chunk.find(text, end) if end >= 0 else -1
    return found


def matching(line: str, among: Iterable[Message]) -> list[Message]:
    """Return the messages whose pattern matches the line; fallbacks only if no other message matches."""
    matched = [message for message in dict.fromkeys(among) if re.search(message.pattern, line)]
    known = [message for message in matched if not message.fallback]
    return known or matched


def _without_prefix(line: str) -> tuple[str, int | None]:
    """Return the line without a launcher's prefix, and the rank in the prefix."""
    rank: int | None = None
    while (prefix := _PREFIX.match(line)) is not None:
        rank = int(next(group for group in prefix.groups() if group is not None))
        line = line[prefix.end() :]
    return line, rank


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about one MiB at a time; a longer line is split."""
    rest = b""
    while block := stream.read(_CHUNK_BYTES):
        chunk = rest + block
        end = chunk.rfind(b"\n") + 1
        if end == 0 and len(chunk) < 2 * _CHUNK_BYTES:
            rest = chunk
            continue
        whole, rest = (chunk[:end], chunk[end:]) if end else (chunk, b"")
        yield _CODES.sub(b"", whole) if b"\x1b[" in whole else whole
    if rest:
        yield _CODES.sub(b"", rest)


def _read_log(stream: BinaryIO, name: str, log: int, findings: dict[str, Finding]) -> None:
    """Read one log and add its messages to the findings."""
    num_lines, context = 0, b""
    for chunk in _chunks(stream):
        counted, number = 0, num_lines + 1
        for start, among in sorted(candidates(chunk).items()):
            number += chunk.count(b"\n", counted, start)
            counted = start
            end = chunk.find(b"\n", start)
            raw = chunk[start : end if end >= 0 else len(chunk)].decode(errors="replace").rstrip("\r")
            line, rank = _without_prefix(raw)
            for message in matching(line, among):
                text = _CONTROL.sub(" ", line).strip()[:400]
                finding = findings.setdefault(message.slug, Finding(message=message, text=text, order=(log, number)))
                _add(finding, line, rank, f"{name}:{number}")
                if finding.count <= _MAX_FRAMES:
                    above = chunk[max(0, start - _CONTEXT_BYTES) : start]
                    _add_frame(finding, context[len(above) :] + above, rank)
        num_lines += chunk.count(b"\n")
        context = chunk[-_CONTEXT_BYTES:].rjust(_CONTEXT_BYTES)


def _add(finding: Finding, line: str, rank: int | None, place: str) -> None:
    finding.count += 1
    said = _RANK.search(line)
    if rank is None and said is not None:
        rank = int(said[1])
    if rank is not None:
        finding.ranks.add(rank)
    if len(finding.places) < _MAX_PLACES:
        finding.places.append(place)


def _add_frame(finding: Finding, above: bytes, rank: int | None) -> None:
    """Add the script's line of the traceback that ends in the message: the last frame outside libraries."""
    if len(finding.frames) >= _MAX_PLACES:
        return
    nearest = ""
    for raw in reversed(above.decode(errors="replace").splitlines()):
        line, whose = _without_prefix(raw)
        if whose != rank or not line.strip():
            continue  # output of another rank in between
        if line.startswith("Traceback (most recent call last)"):
            break
        if not line.startswith(" "):
            return  # not a traceback line: the message has no traceback
        frame = _FRAME.search(line)
        if frame is not None and not nearest and not _LIBRARY.search(frame[1]):
            nearest = f"{frame[1]}:{frame[2]}"
    else:
        return
    if nearest and nearest not in finding.frames:
        finding.frames.append(nearest)


def _unpacked(log: BinaryIO) -> BinaryIO:
    """Return the content of a log that is compressed with gzip, or UTF-16 with its mark; any other stream as it is."""
    stream = log if isinstance(log, BufferedReader) else BufferedReader(cast("Any", log))
    if stream.peek(2)[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:  # as PowerShell redirects output
        return cast("BinaryIO", codecs.EncodedFile(stream, "utf-8", "utf-16", errors="replace"))
    if not stream.peek(2).startswith(b"\x1f\x8b"):
        return stream
    import gzip

    return cast("BinaryIO", gzip.open(stream))


def explain_logs(logs: Iterable[Path | BinaryIO]) -> list[Finding]:
    """Read the logs of one job.

    Args:
        logs: files or open streams of bytes, also those compressed with gzip, in any order.

    Returns:
        The findings, nearest to the root first; equal ones in order of appearance.

    Raises:
        ConfigError: a file cannot be read.
    """
    findings: dict[str, Finding] = {}
    for number, log in enumerate(logs):
        name = str(log) if isinstance(log, Path) else "-"
        try:
            with log.open("rb") if isinstance(log, Path) else nullcontext(log) as stream:
                _read_log(_unpacked(stream), name, number, findings)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"explain wants logs that can be read; {name}: {reason}") from error
    return sorted(findings.values(), key=lambda finding: (finding.message.distance, finding.order))


def render(findings: list[Finding]) -> str:
    """Return the findings as text for a terminal."""
    if not findings:
        return (
            "nothing recognised: none of the messages of `rankwise explain --list` is in these logs.\n"
            "The job may hang without a word (rankwise watch), or the ranks' own output is in other files.\n"
        )
    parts = []
    for number, finding in enumerate(findings, 1):
        message = finding.message
        seen = f"{finding.count} x" if finding.count > 1 else "once"
        ranks = (
            f", rank{'s' if len(finding.ranks) > 1 else ''} {', '.join(map(str, sorted(finding.ranks)))}"
            if finding.ranks
            else ""
        )
        lines = [f"{number}. {message.slug} ({seen}{ranks})", f"   {finding.text}"]
        lines.append(f"   at {', '.join(finding.places)}{' ...' if finding.count > len(finding.places) else ''}")
        if finding.frames:
            lines.append(f"   from {', '.join(finding.frames)}")
        lines += [f"   {message.meaning}", *(f"   cause: {cause}" for cause in message.causes)]
        lines += [*(f"   mend: {mend}" for mend in message.mends), f"   as in {message.source}"]
        parts.append("\n".join(lines))
    first, last = findings[0].message, findings[-1].message
    if len(findings) > 1 and first.distance < LEVELS.index("hang") <= last.distance:
        parts.append(f"Begin with 1 ({first.slug}): what stands below it is likely its consequence.")
    return "\n\n".join(parts) + "\n"
