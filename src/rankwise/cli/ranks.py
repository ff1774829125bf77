"""Words of the command line that need this machine or a rule to be understood: `--nproc` and `--env`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rankwise.errors import ConfigError
from rankwise.launch.cores import num_usable_cores, num_visible_gpus

__all__ = ["count_ranks", "parse_env"]


def count_ranks(word: str) -> int:
    """Turn `--nproc` into a number.

    Args:
        word: a number; "auto": one per visible GPU, or 1 (said) where there is none; "gpu": one per GPU; "cpu": one
            per usable core.

    Raises:
        ConfigError: another word, a number below 1, or "gpu" without a GPU.
    """
    if word.isdigit() and int(word) > 0:
        return int(word)
    if word == "cpu":
        return num_usable_cores()
    if word not in {"auto", "gpu"}:
        raise ConfigError(f"--nproc takes a number from 1, auto, gpu or cpu; got {word!r}")
    gpus = num_visible_gpus()
    if gpus == 0 and word == "gpu":
        raise ConfigError(
            "--nproc gpu: no GPU is visible here (driver, CUDA_VISIBLE_DEVICES); --nproc N starts N ranks on CPU"
        )
    if gpus == 0:
        print("rankwise: no GPU is visible, starting 1 rank (--nproc N starts N of them on CPU)", file=sys.stderr)
    return max(1, gpus)


def parse_env(pairs: Sequence[str]) -> dict[str, str]:
    """Read `--env NAME=VALUE`.

    Raises:
        ConfigError: a pair without "=".
    """
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--env takes NAME=VALUE, got {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)
