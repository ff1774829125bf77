"""Write docs/lint_rules.md and docs/checklist.md from the records of the linter: python docs/build_rules.py."""

from pathlib import Path

from rankwise.diagnose.lint import RULES, checklist_page, rules_page

if __name__ == "__main__":
    Path(__file__).with_name("lint_rules.md").write_text(rules_page(RULES))
    Path(__file__).with_name("checklist.md").write_text(checklist_page())
