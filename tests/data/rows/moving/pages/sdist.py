"""annbatch's source distribution, which holds its documentation: fetched as a package, never copied into this one."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.3.1"
SHA256 = "4e26d8247e7681324c8950357af7fab4d2f6df7edc1a752194d7f7bd607bae77"
NAME = f"annbatch-{VERSION}.tar.gz"

# pip wants to know the metadata of what it downloads, and would install the tools that build it for that. Name and
# version are known, so this takes the place of those tools: nothing of the distribution is executed.
BACKEND = f"""
from pathlib import Path

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    made = Path(folder, "annbatch-{VERSION}.dist-info")
    made.mkdir()
    made.joinpath("METADATA").write_text("Metadata-Version: 2.1\\nName: annbatch\\nVersion: {VERSION}\\n")
    return made.name
"""


def is_whole(archive):
    """Whether a file is there and has the bytes that were published."""
    return archive.is_file() and hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256


def fetch(folder):
    """Return the path of the archive in `folder`; the package index is asked only if it is not there.

    Raises:
        ConnectionError: it could not be fetched; the text is what pip said.
    """
    archive = Path(folder) / NAME
    if not is_whole(archive):
        with tempfile.TemporaryDirectory(dir=folder) as empty:
            done = download(Path(empty))
            if not is_whole(Path(empty) / NAME):
                raise ConnectionError(done.stderr or done.stdout)
            Path(empty, NAME).replace(archive)
    return archive


def download(folder):
    """Ask the package index of this environment."""
    (folder / "hatchling").mkdir()
    (folder / "hatchling" / "build.py").write_text(BACKEND)
    (folder / "wanted.txt").write_text(f"annbatch=={VERSION} --hash=sha256:{SHA256}\n")
    how = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--ignore-requires-python"]
    patience = ["--retries", "1", "--timeout", "20"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            *how,
            *patience,
            "--dest",
            folder,
            "--requirement",
            folder / "wanted.txt",
        ],
        env={**os.environ, "PYTHONPATH": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
