"""What nodes show each other: a token that is never sent, and messages that nobody can make without it."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError

__all__ = ["HELLO", "NODE", "TOKEN_VARIABLE", "Seal", "derived_secret", "read_token"]

HELLO = b"rankwise-rendezvous-1 "  # and its nonce: a rendezvous speaks first
NODE = b"rankwise-node-1 "  # and the node's

TOKEN_VARIABLE = "RANKWISE_TOKEN"  # noqa: S105  (its name)
_LEAST_CHARACTERS = 16


class Seal:
    """Turns messages of one connection into lines and back; a line is good once, in its place, in one direction.

    Args:
        token: what all nodes of the job know.
        nonces: random texts of both sides, new for each connection.
        ours: what the lines of this side are marked with; the other side has another mark.
        theirs: the other side's mark.
    """

    def __init__(self, token: str, nonces: str, *, ours: str, theirs: str) -> None:
        self._key = hmac.digest(token.encode(), f"rankwise rendezvous {nonces}".encode(), "sha256")
        self._ours, self._theirs = ours, theirs
        self._sent = self._taken = 0

    def line(self, message: Mapping[str, Any]) -> bytes:
        """Return the line of a message."""
        text = json.dumps(message)
        code = self._code(self._ours, self._sent, text)
        self._sent += 1
        return f"{code} {text}\n".encode()

    def message(self, line: bytes) -> dict[str, Any] | None:
        """Return the message of a line; None if the other side of this connection has not made it, or not as next."""
        code, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        if not hmac.compare_digest(code.encode(), self._code(self._theirs, self._taken, text).encode()):
            return None
        self._taken += 1
        found = json.loads(text)
        return found if isinstance(found, dict) else None

    def _code(self, mark: str, number: int, text: str) -> str:
        return hmac.new(self._key, f"{mark} {number} {text}".encode(), "sha256").hexdigest()


def derived_secret(token: str, purpose: str) -> str:
    """Return a secret for one purpose that tells nothing of the token."""
    return hmac.new(token.encode(), f"rankwise secret {purpose}".encode(), "sha256").hexdigest()[:32]


def read_token(path: Path | None) -> tuple[str, str]:
    """Return the token of this user's jobs, and where it comes from.

    From a file if one is given, else RANKWISE_TOKEN, else the user's own file, which is made if there is none: a home
    that all nodes share gives it to all of them.

    Raises:
        ConfigError: it is too short, or others may read its file.
    """
    text = os.environ.get(TOKEN_VARIABLE, "")
    if path is None and text:
        return _checked(text, TOKEN_VARIABLE), TOKEN_VARIABLE
    try:
        if path is None:
            path = _own_file()
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"others may read the token in {path}: chmod 600 {path}, or make a new one")
        return _checked(path.read_text(), str(path)), str(path)
    except OSError as error:
        raise ConfigError(f"no token for the rendezvous: {path}: {error.strerror}; set {TOKEN_VARIABLE}") from error


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if len(token) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"the token of {source} has {len(token)} characters, at least {_LEAST_CHARACTERS} are wanted: "
            'python -c "import secrets; print(secrets.token_hex(16))"'
        )
    return token


def _own_file() -> Path:
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "rankwise"
    path = folder / "token"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".token-{secrets.token_hex(8)}"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16) + "\n")
        # whole or not at all, and by one node only where they share the home
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
    return path
