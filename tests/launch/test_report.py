"""What a rank says about its own failure."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import DesyncError
from rankwise.launch.child import _exit_code, invoke
from rankwise.launch.failures.report import Report, make_report
from rankwise.launch.target import Target


def caught(error):
    try:
        raise error  # noqa: TRY301
    except BaseException as same:  # noqa: BLE001
        return same


@given(st.text(), st.integers(0, 255))
def test_one_line_there_and_back(message, exitcode):
    """Any text, newlines and surrogates included, travels as one line."""
    report = make_report(caught(ValueError(message)), 3, exitcode)
    line = report.to_json()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Report.from_json(line) == report


def test_causes_and_peers_are_told():
    """The chain of causes, and the ranks that an error blames, are in the report."""
    error = DesyncError("ranks differ", ranks=(1, 2))
    error.__cause__ = ConnectionError("gone")
    report = make_report(caught(error), 0, 1)
    assert report.peers == (1, 2)
    assert report.causes == ("ConnectionError: gone",)
    assert report.type == "rankwise.errors.DesyncError"


def test_a_broken_message_does_not_hide_the_failure():
    """An exception whose text cannot be made is still reported."""

    class BrokenError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    report = make_report(caught(BrokenError()), 0, 1)
    assert "no text" in report.message
    assert "BrokenError" in report.traceback


@pytest.mark.parametrize(("code", "text"), [(3, "SystemExit: 3"), ("bye", "SystemExit: bye")])
def test_an_exit_says_where(code, text):
    """sys.exit leaves the line that called it, not a whole traceback."""
    report = make_report(caught(SystemExit(code)), 0, 3)
    assert text in report.traceback
    assert "test_report.py" in report.traceback
    assert "Traceback" not in report.traceback


def test_a_script_that_does_not_compile_shows_no_frames_of_the_launcher(tmp_path, monkeypatch):
    """As Python itself does: the file, the line, the error."""
    script = tmp_path / "broken.py"
    script.write_text("x = (\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(SyntaxError) as caught_error:
        invoke(Target(kind="script", name=str(script)), 0)
    trace = caught_error.value.__traceback__.tb_next
    report = make_report(caught_error.value.with_traceback(trace), 0, 1)
    assert report.traceback.startswith(f'  File "{script}", line 1\n')


@pytest.mark.parametrize("name", ["no_such_module_at_all:main", "os:no_such_function", "os:sep"])
def test_a_function_that_is_not_found_shows_no_frames_of_the_launcher(name, monkeypatch):
    """The error names it; the lines that looked for it are ours."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises((ImportError, AttributeError, TypeError)) as caught_error:
        invoke(Target(kind="function", name=name), 0)
    trace = caught_error.value.__traceback__.tb_next
    report = make_report(caught_error.value.with_traceback(trace), 0, 1)
    assert "File" not in report.traceback
    assert report.message in report.traceback


@pytest.mark.parametrize(("code", "same"), [(3, 3), (-1, 255), (300, 44), (2**70, 255), (-(2**63), 0)])
def test_an_exit_code_is_that_of_python(code, same):
    """A number that C cannot hold is a failure, too."""
    assert _exit_code(SystemExit(code)) == same


def test_an_odd_exception_does_not_hide_the_failure():
    """Its comparison and its attributes may raise."""

    class OddError(Exception):
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError("not to be compared")

        @property
        def ranks(self):
            raise RuntimeError("not to be read")

    error = OddError("the failure")
    error.__cause__ = OddError("the cause")
    error.__cause__.__cause__ = OddError("its cause")
    report = make_report(caught(error), 0, 1)
    assert report.message == "the failure"
    assert [cause.rpartition(": ")[2] for cause in report.causes] == ["the cause", "its cause"]


def test_a_message_of_megabytes_is_searched_at_its_begin():
    """A whole array in a message took minutes to be told from the loss of a peer."""
    assert make_report(caught(RuntimeError("gloo: connection closed by peer" + "x" * 20_000_000)), 0, 1).is_collateral
    assert not make_report(caught(RuntimeError("x" * 20_000_000 + " gloo: connection closed")), 0, 1).is_collateral
