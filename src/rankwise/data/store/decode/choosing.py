"""Which decoder this process uses, and why."""

from __future__ import annotations

import functools
import os

from rankwise.data.store.decode.decoder import Decoder
from rankwise.data.store.decode.threads import ThreadsDecoder
from rankwise.data.store.forks import forks_wait
from rankwise.errors import ConfigError

__all__ = ["VARIABLE", "choose_decoder"]

VARIABLE = "RANKWISE_DECODER"
_CHOICES = ("kernel", "threads")


def choose_decoder() -> tuple[Decoder, str]:
    """Return the decoder of this process, and why it is not the compiled one ("" if it is).

    The compiled one where it works here, else Python threads with numcodecs; tried once for each process. The
    environment variable `VARIABLE` asks for one of them: "kernel" or "threads".

    Raises:
        ConfigError: the variable holds something else, or asks for the compiled one, which does not work here.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", *_CHOICES):
        raise ConfigError(f"{VARIABLE} wants one of {', '.join(_CHOICES)}, got {asked!r}")
    with forks_wait:
        decoder, why = _chosen(asked)
    if asked == "kernel" and decoder.name != "kernel":
        raise ConfigError(f"{VARIABLE} asks for the compiled decoder, which does not work here: {why}")
    return decoder, why


@functools.cache
def _chosen(asked: str) -> tuple[Decoder, str]:
    if asked == "threads":
        return ThreadsDecoder(), f"{VARIABLE} asks for it"
    try:
        return _kernel(), ""
    except Exception as error:  # noqa: BLE001  (whatever goes wrong while compiling: there is another way)
        return ThreadsDecoder(), _reason(error)


def _kernel() -> Decoder:
    from rankwise.data.store.decode.kernel import KernelDecoder
    from rankwise.data.store.decode.selftest import self_test

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set")
    decoder = KernelDecoder()
    self_test(decoder)
    return decoder


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
