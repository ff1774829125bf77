"""The end of a pipeline: closed, forgotten, or waited for by somebody."""

import gc
import os
import signal
import threading
import warnings
from itertools import count

import pytest

import rankwise.data.crops as damacy
from rankwise.testing.endings import run_endings
from rankwise.testing.new_threads import threads_end, threads_since


def test_a_closed_pipeline_is_closed(volume, config):
    """Closing twice is fine; popping and pushing are refused; nothing is drained."""
    pulled = []
    p = damacy.Pipeline(config())
    p.push(pulled.append(i) or volume.sample(0, 0, 0) for i in count())
    p.pop()
    p.close()
    p.close()
    number = len(pulled)
    with pytest.raises(damacy.ShutdownError, match="no more batches"):
        p.pop()
    with pytest.raises(damacy.ShutdownError, match="no more samples"):
        p.push([])
    assert list_of(p) == "ShutdownError"
    assert len(pulled) == number


def list_of(pipeline):
    try:
        return list(pipeline)
    except damacy.DamacyError as error:
        return type(error).__name__


def test_closing_wakes_a_waiting_pop(volume, config):
    """A pop in another thread does not hang when the pipeline is closed, and close does not wait for the source."""
    never = threading.Event()
    p = damacy.Pipeline(config(pop_timeout_s=None))

    def stuck():
        yield volume.sample(0, 0, 0)
        never.wait(60)

    p.push(stuck())
    caught = []

    def pop():
        try:
            p.pop()
        except damacy.ShutdownError as error:
            caught.append(error)

    thread = threading.Thread(target=pop)
    thread.start()
    p.close()
    thread.join(30)
    never.set()
    assert len(caught) == 1


def test_a_forgotten_pipeline_stops(volume, config):
    """Threads end when nobody has the pipeline any more, closed or not."""
    p = damacy.Pipeline(config())
    p.push(volume.sample(0, 0, 0) for _ in count())
    p.pop()
    assert threads_since("rankwise-reader")
    del p
    gc.collect()
    assert threads_end("rankwise-reader")


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_push_without_threads(volume, config, monkeypatch, nth):
    """Where a thread cannot be started the push fails whole: no pop waits for its samples, and the next one goes."""
    start, started = threading.Thread.start, []

    def fails_once(thread):
        started.append(thread)
        if len(started) == nth:
            raise RuntimeError("can't start new thread")
        start(thread)

    samples = [volume.sample(0, 0, 0)] * 2
    with damacy.Pipeline(config(samples_per_batch=2)) as p:
        with monkeypatch.context() as system:
            system.setattr(threading.Thread, "start", fails_once)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                p.push(samples)
        with pytest.raises(damacy.TryAgain):
            p.pop()
        p.push(samples)
        assert len(p.pop().samples) == 2


def test_generators_are_closed(volume, config):
    """A generator that was not pulled to its end is closed with the pipeline: its finally blocks run."""
    ended = threading.Event()

    def source():
        try:
            while True:
                yield volume.sample(0, 0, 0)
        finally:
            ended.set()

    with damacy.Pipeline(config()) as p:
        p.push(source())
        p.pop()
    assert ended.wait(30)


@pytest.mark.parametrize("stage", ["nothing pushed", "room for samples", "arrays", "room for batches", "more pushes"])
def test_closing_ends_every_wait(volume, config, stage, caplog):
    """Whatever the threads of a pipeline wait for, closing it ends them, and gives the source back."""
    values, ended, full = {}, threading.Event(), threading.Semaphore(0)
    if stage == "arrays":
        values = {"metadata_latency": damacy.LatencyModel(baseline_ns=3600e9, cap_ns=3600e9)}
    if stage == "room for batches":
        values = {"host_buffer_waves": 2, "pop_timeout_s": 0.3}

    def source():
        try:
            for number in count():
                full.release()
                yield volume.sample(number % 16, 0, 0)
                if stage == "more pushes" and number == 4:
                    return
        finally:
            ended.set()

    p = damacy.Pipeline(config(**values))
    if stage != "nothing pushed":
        p.push(source())
        assert full.acquire(timeout=60)  # a generator that was never begun ends without its finally blocks
    if stage in ("room for samples", "room for batches"):
        held = [p.pop()]
        while full.acquire(timeout=0.3):
            pass
        assert len(held) == 1
    if stage == "more pushes":
        assert len(p.pop()) == 4
        assert ended.wait(30)
    p.close()
    assert "left behind" not in caplog.text  # what is said of a thread that does not end in time
    assert threads_end("rankwise-reader")
    assert ended.is_set() is (stage != "nothing pushed")
    assert not p.pending
    with pytest.raises(damacy.ShutdownError):
        p.pop()


def test_a_source_may_close_its_pipeline(volume, config):
    """The user's iterable runs in a thread of the pipeline, which does not wait for itself."""
    p = damacy.Pipeline(config())

    def source():
        yield from volume.samples(6)
        p.close()
        yield from volume.samples(6)

    p.push(source())
    assert list_of(p) == "ShutdownError"
    assert threads_end("rankwise-reader")


def test_a_generator_that_fails_while_it_is_closed_is_said(volume, config, caplog):
    """Nobody pops any more who could hear of it: it is in the log, and close goes on."""

    def source():
        try:
            while True:
                yield volume.sample(0, 0, 0)
        finally:
            raise OSError("my own trouble")

    with damacy.Pipeline(config()) as p:
        p.push(source())
        p.pop()
    assert threads_end("rankwise-reader")
    assert "my own trouble" in caplog.text


def test_an_interrupt_ends_a_pop_and_the_stream_goes_on(volume, config):
    """Ctrl-C reaches a pop that waits; who catches it may go on popping, nothing is lost."""
    go = threading.Event()

    def slow():
        yield volume.sample(0, 0, 0)
        go.wait(60)
        yield from volume.samples(7)

    with damacy.Pipeline(config()) as p:
        p.push(slow())
        timer = threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])

        def begun_and_popped():
            timer.start()  # it may fire before the pop has begun
            p.pop()

        with pytest.raises(KeyboardInterrupt):
            begun_and_popped()
        go.set()
        assert [batch.numbers.tolist() for batch in p] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        timer.join()


def test_a_fork_is_told_and_leaves_the_pipeline_alone(volume, config):
    """The threads are in the process that made the pipeline: a fork hears so at once, and ends without waiting."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.samples(12))
        p.pop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
            child = os.fork()
        if child == 0:
            told = 0
            for call in (p.pop, lambda: p.push([])):
                try:
                    call()
                except damacy.ShutdownError as error:
                    told += "fork" in str(error)
            p.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert [len(batch) for batch in p] == [4, 4]


PROGRAM = """
def source():
    for number in range(10**9):
        if number == 9 and {stuck}:
            threading.Event().wait()
        yield damacy.Sample({uri!r}, ((0, 4), (0, 8), (0, 8)))

p = damacy.Pipeline(damacy.Config(samples_per_batch=4, sample_shape=(4, 8, 8), device="numpy"))
p.push(source())
print(len(p.pop()))
"""


def test_a_program_ends_with_an_open_pipeline(volume):
    """Nobody has to close: the interpreter ends cleanly, with a source that never ends or never goes on."""
    programs = [PROGRAM.format(uri=volume.uri, stuck=stuck) for stuck in (False, True)]
    for done in run_endings("import threading\nimport rankwise.data.crops as damacy\n", programs):
        assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
