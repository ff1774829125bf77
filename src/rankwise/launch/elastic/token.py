"""The token that all nodes of a job know, and secrets derived from it."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from rankwise._files import user_folder
from rankwise.errors import ConfigError

_VARIABLE = "RANKWISE_TOKEN"
_LEAST_CHARACTERS = 16


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
    text = os.environ.get(_VARIABLE, "")
    if path is None and text:
        return _checked(text, _VARIABLE), _VARIABLE
    try:
        if path is None:
            path = _own_file()
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"other users can read the token in {path}: chmod 600 {path}, or create a new one")
        return _checked(path.read_text(), str(path)), str(path)
    except OSError as error:
        raise ConfigError(
            f"no token for the rendezvous: {error.filename}: {error.strerror}; set {_VARIABLE}"
        ) from error


def _checked(text: str, source: str) -> str:
    token = text.strip()
    if len(token) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"the token of {source} has {len(token)} characters, at least {_LEAST_CHARACTERS} are required: "
            'python -c "import secrets; print(secrets.token_hex(16))"'
        )
    return token


def _own_file() -> Path:
    folder = user_folder("XDG_CONFIG_HOME", ".config")
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
