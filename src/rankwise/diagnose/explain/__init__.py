"""Explain the messages in the logs of any distributed job, and find the root."""

from rankwise.diagnose.explain.catalogue import MESSAGES, Message, catalogue_table
from rankwise.diagnose.explain.logs import Finding, explain_logs, render

__all__ = ["MESSAGES", "Finding", "Message", "catalogue_table", "explain_logs", "render"]
