"""Before a run: misuse of distributed training in scripts, notebooks and launch lines, found without running them.

Standard library only: it works where torch and numpy are absent.
"""

from rankwise.diagnose.lint.catalogue import RULES
from rankwise.diagnose.lint.checker import Failure, Report, check_source, lint_paths
from rankwise.diagnose.lint.checklist import CLAIMS, checklist_page, checklist_text, items_of
from rankwise.diagnose.lint.inputs import SourceFile, source_from_text
from rankwise.diagnose.lint.outputs import FORMATS, rule_text, rules_page, to_text
from rankwise.diagnose.lint.record import Edit, Finding, Fix, Rule
from rankwise.diagnose.lint.settings import Settings, find_settings

__all__ = [
    "CLAIMS",
    "FORMATS",
    "RULES",
    "Edit",
    "Failure",
    "Finding",
    "Fix",
    "Report",
    "Rule",
    "Settings",
    "SourceFile",
    "check_source",
    "checklist_page",
    "checklist_text",
    "find_settings",
    "items_of",
    "lint_paths",
    "rule_text",
    "rules_page",
    "source_from_text",
    "to_text",
]
