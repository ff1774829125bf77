"""Authentication between nodes: messages carry an HMAC with a shared token, which is never sent."""

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

HELLO = b"rankwise-rendezvous-1 "  # first line of a rendezvous, followed by its nonce
NODE = b"rankwise-node-1 "  # the node's answer, followed by its nonce

TOKEN_VARIABLE = "RANKWISE_TOKEN"  # noqa: S105  (its name)
_LEAST_CHARACTERS = 16


class Seal:
    """Turns messages of one connection into lines and back; a line is valid once, in its position and direction.

    Args:
        token: the secret of all nodes of the job.
        nonces: random texts of both sides, new for each connection.
        ours: mark of this side's lines in the HMAC; the other side has another mark.
        theirs: mark of the other side's lines.
    """

    def __init__(self, token: str, nonces: str, *, ours: str, theirs: str) -> None:
        self._key = hmac.digest(token.encode(), f"rankwise rendezvous {nonces}".encode(), "sha256")
        self._ours, self._theirs = ours, theirs
        self._sent = self._taken = 0

    def line(self, message: Mapping[str, Any]) -> bytes:
        """Return the line for a message."""
        text = json.dumps(message)
        code = self._code(self._ours, self._sent, text)
        self._sent += 1
        return f"{code} {text}\n".encode()

    def message(self, line: bytes) -> dict[str, Any] | None:
        """Return the message in a line; None if the HMAC or the position in the sequence is wrong."""
        code, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        if not hmac.compare_digest(code.encode(), self._code(self._theirs, self._taken, text).encode()):
            return None
        self._taken += 1
        found = json.loads(text)
        return found if isinstance(found, dict) else None

    def _code(self, mark: str, number: int, text: str) -> str:
        return hmac.new(self._key, f"{mark} {number} {text}".encode(), "sha256").hexdigest()


def derived_secret(token: str, purpose: str) -> str:
    """Return a secret for one purpose, from which the token cannot be derived."""
    return hmac.new(token.encode(), f"rankwise secret {purpose}".encode(), "sha256").hexdigest()[:32]


def read_token(path: Path | None) -> tuple[str, str]:
    """Return the token of this user's jobs, and its source.

    It comes from the given file, else from RANKWISE_TOKEN, else from the user's own file, which is created if missing.
    With a home folder on shared storage, all nodes have this file.

    Raises:
        ConfigError: the token is too short, or other users may read its file.
    """
    text = os.environ.get(TOKEN_VARIABLE, "")
    if path is None and text:
        return _checked(text, TOKEN_VARIABLE), TOKEN_VARIABLE
    try:
        if path is None:
            path = _own_file()
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"other users can read the token in {path}: chmod 600 {path}, or create a new one")
        return _checked(path.read_text(), str(path)), str(path)
    except OSError as error:
        raise ConfigError(f"no token for the rendezvous: {path}: {error.strerror}; set {TOKEN_VARIABLE}") from error


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if len(token) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"the token of {source} has {len(token)} characters, at least {_LEAST_CHARACTERS} are required: "
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
        # atomic, so that only one node creates it in a shared home folder
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
    return path
