"""Which decoder is chosen, why, and what a fresh process spends on it."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from rankwise.data.store.decode import choice
from rankwise.data.store.decode.choice import choose_decoder
from rankwise.data.store.decode.decoder import ThreadsDecoder
from rankwise.data.store.decode.symbols import SymbolsMissingError
from rankwise.errors import ConfigError

LOAD = """
import json
from rankwise.data.store.decode.choice import choose_decoder
decoder, why = choose_decoder()
print(json.dumps([decoder.name, why, getattr(decoder, "num_compiled", None), getattr(decoder, "num_loaded", None)]))
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Choose anew in each test."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    choice._chosen.cache_clear()
    yield
    choice._chosen.cache_clear()


def in_process(program=LOAD, **environment):
    """Run a program in a fresh interpreter; returns what it printed last, as JSON."""
    done = start(program, **environment)
    return finish(done)


def start(program=LOAD, **environment):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    environment = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_the_compiled_decoder_is_chosen_where_it_works():
    """Here it works, once for the process."""
    decoder, why = choose_decoder()
    assert (decoder.name, why) == ("kernel", "")
    assert choose_decoder()[0] is decoder


@pytest.mark.parametrize("name", ["kernel", "threads"])
def test_the_environment_chooses(name, monkeypatch):
    """Whoever asks for one gets it, and reads why."""
    monkeypatch.setenv(choice.VARIABLE, name)
    decoder, why = choose_decoder()
    assert decoder.name == name
    assert (choice.VARIABLE in why) == (name == "threads")


def test_another_choice_is_an_error(monkeypatch):
    """A choice that is none is refused, with those that are."""
    monkeypatch.setenv(choice.VARIABLE, "gpu")
    with pytest.raises(ConfigError, match="kernel, threads, got 'gpu'"):
        choose_decoder()


def test_missing_symbols_choose_the_fallback(monkeypatch):
    """A build of numcodecs that hides its decoders costs speed, and the reason names what is missing."""
    from rankwise.data.store.decode import symbols

    monkeypatch.setitem(symbols._EXPORTED, "blosc", ("blosc_no_such_function",))
    decoder, why = choose_decoder()
    assert decoder.name == "threads"
    assert "numcodecs.blosc does not export blosc_no_such_function" in why
    monkeypatch.setenv(choice.VARIABLE, "kernel")
    with pytest.raises(ConfigError, match="blosc_no_such_function"):
        choose_decoder()


def test_nothing_is_registered_unless_all_is_there(monkeypatch):
    """Compiled code must not find half of its symbols."""
    from llvmlite import binding

    from rankwise.data.store.decode import symbols

    added = []
    monkeypatch.setattr(binding, "add_symbol", lambda name, address: added.append((name, address)))
    symbols.register()
    assert all(name.startswith(symbols.PREFIX) and address for name, address in added)
    assert len(added) == 9
    added.clear()
    monkeypatch.setitem(symbols._EXPORTED, "lz4", ("LZ4_decompress_safe", "LZ4_gone"))
    with pytest.raises(SymbolsMissingError, match="LZ4_gone"):
        symbols.register()
    assert added == []


def test_without_numba_the_fallback_is_chosen():
    """Right answers do not need numba."""
    program = "import sys; sys.modules['numba'] = None\n" + LOAD
    name, why, *_ = in_process(program)
    assert name == "threads"
    assert "numba" in why


def test_without_compilation_the_fallback_is_chosen():
    """Whoever switches numba off gets the fallback, not a loop over bytes in Python."""
    name, why, *_ = in_process(NUMBA_DISABLE_JIT="1")
    assert (name, why) == ("threads", "ConfigError: NUMBA_DISABLE_JIT is set")


class WrongDecoder(ThreadsDecoder):
    """Gets one element wrong."""

    def run(self, tasks, first, last, out, scratch):
        super().run(tasks, first, last, out, scratch)
        out[-1, 0, 0, 0] += 1


class BlindDecoder(ThreadsDecoder):
    """Sees no damage."""

    def run(self, tasks, first, last, out, scratch):
        super().run(tasks, first, last, out, scratch)
        tasks.status[...] = 0


@pytest.mark.parametrize(
    ("wrong", "told"), [(WrongDecoder, "are decoded wrongly"), (BlindDecoder, "damaged test chunk was accepted")]
)
def test_a_decoder_that_fails_its_test_is_not_used(wrong, told, monkeypatch):
    """What is compiled is tried on known chunks before it touches data."""
    monkeypatch.setattr("rankwise.data.store.decode.kernel.KernelDecoder", wrong)
    decoder, why = choose_decoder()
    assert type(decoder) is ThreadsDecoder
    assert told in why


def test_the_fallback_passes_the_same_test():
    """Both decoders are held to one test."""
    assert choice.self_test(ThreadsDecoder()) is None


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_compile_once(tmp_path, num_ranks):
    """Ranks that start together compile into one folder, none in another's way; the next process compiles nothing.

    Two functions each: the loop over chunks, and one over elements.
    """
    together = [start(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(num_ranks)]
    assert [finish(process)[:2] for process in together] == [["kernel", ""]] * num_ranks
    assert in_process(NUMBA_CACHE_DIR=str(tmp_path)) == ["kernel", "", 0, 2]
