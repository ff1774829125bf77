"""Random generators that depend on a seed and a key only, and seeding of this process's global generators."""

from __future__ import annotations

import contextlib
import hashlib
import random
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.world.jax_state import import_jax

if TYPE_CHECKING:
    import torch


def _digest(seed: int, key: tuple[int | str, ...]) -> bytes:
    """Hash seed and key to 16 bytes; type and length of each part are included, so ("a", 1) differs from ("a1",)."""
    parts = [f"seed:{int(seed)}"]
    for part in key:
        if isinstance(part, str):
            parts.append(f"str:{len(part)}:{part}")
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            parts.append(f"int:{int(part)}")
        else:
            raise ConfigError(f"a generator's key must consist of integers and strings, got {part!r} in {key!r}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16, person=b"rankwise-key").digest()


def check_seed(seed: int) -> None:
    """Refuse a seed that NumPy does not accept.

    Raises:
        ConfigError: it is out of range.
    """
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed must be an integer from 0 to 2**32 - 1 (the range of NumPy), got {seed!r}")


def seed_generators(seed: int) -> None:
    """Seed the global generators: `random`, NumPy's, and, if torch is installed, torch's on every device.

    `bind` does this on entry, with the same seed on all ranks; a call seeds this rank's generators only.

    Args:
        seed: 0 <= seed < 2**32.

    Raises:
        ConfigError: the seed is out of range.
    """
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (libraries draw from the global generator)
    with contextlib.suppress(ImportError):
        import torch

        torch.manual_seed(seed)


def numpy_generator(seed: int, key: tuple[int | str, ...]) -> np.random.Generator:
    """Return a Philox generator whose stream is a function of (seed, key) only.

    Raises:
        ConfigError: the key holds something else than integers and strings.
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, key), "little")))


def torch_generator(seed: int, key: tuple[int | str, ...], device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator on `device` whose seed is a function of (seed, key) only.

    Raises:
        ConfigError: the key holds something else than integers and strings.
    """
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(_digest(seed, key)[:8], "little") >> 1)
    return generator


def jax_key(seed: int, key: tuple[int | str, ...]) -> Any:
    """Return a JAX random key that is a function of (seed, key) only.

    Raises:
        ConfigError: the key holds something else than integers and strings.
        MissingExtraError: JAX is not installed.
    """
    data = np.frombuffer(_digest(seed, key)[:8], dtype=np.uint32)
    return import_jax().random.wrap_key_data(data, impl="threefry2x32")
