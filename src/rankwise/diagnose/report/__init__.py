"""Write one HTML page about a run: its configuration, its course, and its problems."""

from rankwise.diagnose.report.page import write_report

__all__ = ["write_report"]
