"""Write docs/lint_rules.md from the records of the rules: python docs/build_rules.py."""

from pathlib import Path

from rankwise.diagnose.lint import RULES, rules_page

if __name__ == "__main__":
    Path(__file__).with_name("lint_rules.md").write_text(rules_page(RULES))
