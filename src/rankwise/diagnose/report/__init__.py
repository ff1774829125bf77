"""After a run: one HTML page that says what it was, how it went, and what was wrong."""

from rankwise.diagnose.report.page import write_report

__all__ = ["write_report"]
