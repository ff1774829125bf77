"""The page of all rules, made from their records."""

from __future__ import annotations

from collections.abc import Iterable

from rankwise.diagnose.lint.record import Rule

__all__ = ["rules_page"]

_FAMILIES = {
    "1": "Data and order",
    "2": "Model and wrap",
    "3": "Step and gradients",
    "4": "Collectives and tests of the rank",
    "5": "Checkpoints",
    "6": "Launch and environment",
    "7": "rankwise's own interface",
    "9": "Comments of the linter",
}
_FIXES = {"none": "", "safe": "`--fix`", "unsafe": "`--unsafe-fixes`"}
_HEAD = """# The rules of `rankwise lint`

Made from the rules' records by `python docs/build_rules.py`; a test keeps both equal, and runs every example.
How to use them: [lint](lint.md). Rules of level info, and of low confidence, are off unless they are selected by name.
"""


def rules_page(rules: Iterable[Rule]) -> str:
    """Return the page: a table of all rules, then each of them by family."""
    listed = list(rules)
    rows = [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.slug}) | {rule.slug} | {rule.level} | {rule.confidence} "
        f"| {_FIXES[rule.fix]} |"
        for rule in listed
    ]
    parts = [_HEAD, "| code | slug | level | confidence | fix |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"]
    for digit, title in _FAMILIES.items():
        family = [rule for rule in listed if rule.code[2] == digit]
        if family:
            parts += [f"## {title}\n", *map(_section, family)]
    return "\n".join(parts)


def _section(rule: Rule) -> str:
    fence = "py" if rule.language == "python" else "bash"
    message = rule.message.replace("{", "<").replace("}", ">").replace("!r>", ">")
    return "\n".join(
        (
            f"### {rule.code} {rule.slug}\n",
            f"> {rule.level}: `{message}`\n" if message != "<text>" else f"> {rule.level}\n",
            f"{rule.why} (PyTorch {rule.versions}.)\n",
            f"Wrong:\n\n```{fence}\n{rule.wrong}```\n",
            f"Right:\n\n```{fence}\n{rule.right}```\n",
            f"Ignore it when: {rule.ignore}\n",
        )
    )
