"""Build HTML safely: everything that is not markup is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Columns = dict[str, str | Callable[[dict[str, Any]], object]]
_VOID = {"meta", "input"}
_MOST_TEXT = 6000
_MOST_ROWS = 200
_SHORT_TEXT = 24  # characters; for example a time in UTC, or one word


class Markup(str):
    """Text that is HTML; only `el`, `join` and `island` create it."""

    __slots__ = ()


def el(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. Children that are no `Markup` are escaped; attributes that are None are left out.

    A trailing underscore of an attribute's name is dropped (``class_``), others become hyphens.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            plain = key.rstrip("_").replace("_", "-")
            words.append(plain if value is True else f'{plain}="{html.escape(_cut(str(value)), quote=True)}"')
    begin = f"<{' '.join(words)}>"
    return Markup(begin if name in _VOID else f"{begin}{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Return the concatenated children; None is skipped, text that is no `Markup` is escaped."""
    return Markup("".join(_one(child) for child in children))


def _one(child: object) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else html.escape(_cut(str(child)), quote=True)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} … ({len(text) - _MOST_TEXT} more characters)"


def none(text: str) -> Markup:
    """Return a section's paragraph that says that there is nothing."""
    return el("p", text, class_="none")


def not_recorded(*what: object) -> Markup:
    """Return a section's paragraph that says what would record its content."""
    return el("p", "not recorded: ", *what, class_="none")


def records_table(records: Sequence[dict[str, Any]], columns: Columns, *, name: str) -> Markup | None:
    """Return a table of JSON records; None if there are none.

    Args:
        records: one for each row.
        columns: for each heading, the key of a value to tell, or a function of the record that returns the cell.
        name: its name for screen readers.
    """
    rows = [
        [text_of(record.get(cell)) if isinstance(cell, str) else cell(record) for cell in columns.values()]
        for record in records
    ]
    return table(list(columns), rows, name=name) if rows else None


def table(head: Sequence[object], rows: Sequence[Sequence[object]], *, name: str) -> Markup:
    """Return a table of at most 200 rows, with the number of further rows; a narrow page shows a list of rows."""
    shown = [el("tr", *map(_cell, head, row)) for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        shown.append(el("tr", el("td", f"… {len(rows) - _MOST_ROWS} more rows", colspan=len(head))))
    inner = el(
        "table",
        el("thead", el("tr", *(el("th", word, scope="col") for word in head))),
        el("tbody", *shown),
    )
    return el("div", inner, class_="wide", tabindex=0, role="region", aria_label=name)


def _cell(label: object, cell: object) -> Markup:
    """Return a cell with its column's name, for narrow pages; a short text is not wrapped."""
    plain = not isinstance(cell, Markup) and len(str(cell)) <= _SHORT_TEXT
    return el("td", cell, data_label=None if isinstance(label, Markup) else label, class_="short" if plain else None)


def island(name: str, value: Any) -> Markup:
    """Return data for the script as a JSON block; no text in it can close the block or start a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII only: U+2028 and others are escaped
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def text_of(value: object) -> str:
    """Return a value of a run's files in readable form."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def short_number(value: object) -> str:
    """Return a measured number with three digits; other values as `text_of` does."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e15 < value < 1e15:
        return text_of(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
