"""Reading logs: the root first, repeats folded, ranks and places named, whatever the bytes."""

import gzip
import io
import json
import subprocess
import sys

import pytest

from rankwise.cli.entry import main
from rankwise.diagnose.explain import explain_logs, render
from rankwise.errors import ConfigError

FAILED = b"""\
[rank0]:[W227 10:54 ProcessGroupNCCL.cpp:1374] Warning: process group has NOT been destroyed before we destruct
RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:28048
[rank0]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(
[rank2]:[E321 02:07:08 ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 88, in <module>
[rank0]: a line between
[rank1]:     loss.backward()
[rank1]:   File "/env/lib/python3.12/site-packages/torch/_tensor.py", line 5, in backward
[rank1]: torch.OutOfMemoryError: \x1b[31mCUDA out of\x1b[0m memory. Tried to allocate 2.00 GiB.
W0219 api.py:858] Sending process 2448006 closing signal SIGTERM
W0219 api.py:858] Sending process 2448007 closing signal SIGTERM
"""


def explain(*logs):
    return explain_logs([io.BytesIO(log) for log in logs])


def test_the_cause_comes_before_its_consequences():
    """In whatever order the lines stand: memory, then the ranks that waited, closed connections, the agent."""
    findings = explain(FAILED)
    assert [finding.message.slug for finding in findings] == [
        "cuda-out-of-memory",
        "watchdog-timeout",
        "gloo-closed",
        "agent-sigterm",
        "group-not-destroyed",
    ]
    first, waited, *_, agent, _ = findings
    assert (first.ranks, first.places, first.frames) == ({1}, ["-:10"], ["/home/me/train.py:88"])
    assert (waited.ranks, waited.count, waited.frames) == ({0, 2}, 2, [])
    assert agent.count == 2
    text = render(findings)
    assert "Begin with 1 (cuda-out-of-memory)" in text
    assert "2. watchdog-timeout (2 x, ranks 0, 2)" in text


def test_logs_of_ranks_are_one_job():
    """Findings of several files are folded; of equals, that of the first file comes first."""
    lost = b"1: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    findings = explain(lost, FAILED, lost)
    assert [finding.message.slug for finding in findings[:2]] == ["ecc-error", "cuda-out-of-memory"]
    assert findings[0].count == 2
    assert findings[0].ranks == {1}


@pytest.mark.parametrize(
    "line",
    [
        b"[rank7]: %s",
        b"7: %s",
        b"[default7]:[rank7]: %s",
        b"[1,7]<stderr>:%s",
        b"[Rank 7] %s",
        b"\x1b[36m[rank7]:\x1b[0m %s",
    ],
)
def test_prefixes_name_the_rank(line):
    """torchrun's, srun's and mpirun's prefixes."""
    (finding,) = explain(line % b"KeyError: 'weights'\r\n")
    assert finding.message.slug == "python-exception"
    assert finding.text == "KeyError: 'weights'"
    assert finding.ranks == {7}


def test_a_large_log_is_read_in_pieces():
    """Lines keep their numbers over the borders of pieces; bytes that are no text, and endless lines, do no harm."""
    filler = b"step 1 loss 0.25 \xff\xfe\x00 eta 1:00\n" * 100_000
    log = filler + FAILED + b"x" * 3_000_000 + b"\n" + filler + b"OSError: [Errno 28] No space left on device"
    findings = {finding.message.slug: finding for finding in explain(log)}
    assert findings["cuda-out-of-memory"].places == ["-:100010"]
    assert findings["disk-full"].places == ["-:200014"]
    assert findings["cuda-out-of-memory"].frames == ["/home/me/train.py:88"]


def test_nothing_and_nothing_readable(tmp_path):
    """A clean log is said to hold nothing known; a missing one is an error with its name."""
    assert explain(b"", b"all is well\n") == []
    assert "nothing recognised" in render([])
    with pytest.raises(ConfigError, match="missing\\.log"):
        explain_logs([tmp_path / "missing.log"])


def test_the_command_needs_no_torch():
    """Standard input and JSON, where torch and numpy cannot be imported."""
    script = (
        "import sys\nsys.modules.update(torch=None, numpy=None)\nsys.argv[0] = 'rankwise'\n"
        "from rankwise.cli.entry import main\nmain()\n"
    )
    command = [sys.executable, "-c", script, "explain", "--json", "-"]
    done = subprocess.run(command, input=FAILED, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"][0]["slug"] == "cuda-out-of-memory"


@pytest.mark.parametrize(("text", "code"), [(FAILED, 0), (b"all is well\n", 1), (None, 2)])
def test_exit_codes(tmp_path, monkeypatch, capsys, text, code):
    """0 explained, 1 nothing recognised, 2 a log that cannot be read, with its name."""
    log = tmp_path / "job.log"
    if text is not None:
        log.write_bytes(text)
    monkeypatch.setattr(sys, "argv", ["rankwise", "explain", str(log)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    said = capsys.readouterr()
    assert {0: "cuda-out-of-memory", 1: "nothing recognised", 2: "job.log: No such file"}[code] in said.out + said.err


def test_a_rotated_log_may_be_compressed(tmp_path):
    """Gzip is recognised by its first bytes; one that ends early is named."""
    packed = gzip.compress(b"step 1\rstep 2\rRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    log = tmp_path / "rank-0.err.1.gz"
    log.write_bytes(packed)
    (finding,) = explain_logs([log])
    assert finding.text == "step 1 step 2 RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert finding.places == [f"{log}:1"]
    assert [found.places for found in explain(packed)] == [["-:1"]]
    log.write_bytes(packed[:-12])
    with pytest.raises(ConfigError, match=r"rank-0.*ended before"):
        explain_logs([log])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_utf16(tmp_path, encoding):
    """PowerShell redirects output as UTF-16, with a mark at its beginning."""
    log = tmp_path / "job.log"
    text = "\ufeffstep 1\r\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\r\n"
    log.write_bytes(text.encode(encoding))
    (finding,) = explain_logs([log])
    assert finding.text == "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert finding.places == [f"{log}:2"]
