"""Tables in Unicode box drawing, or in ASCII where the output cannot show that."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from prettytable import PrettyTable, TableStyle

__all__ = ["boxed"]


def boxed(header: Sequence[str], rows: Iterable[Sequence[object]], *, max_width: int | None = None) -> str:
    """The rows under their header; None is a dash.

    Args:
        header: Names of the columns.
        rows: A value for each column.
        max_width: Characters of a column before its text is wrapped.
    """
    table = PrettyTable(list(header))
    table.align = "l"
    if max_width is not None:
        table.max_width = max_width
    fancy = _shows_boxes()
    if fancy:
        table.set_style(TableStyle.SINGLE_BORDER)
        table.align = "l"
    for row in rows:
        table.add_row([("–" if fancy else "-") if value is None else _shown(value) for value in row])
    return str(table)


def _shows_boxes() -> bool:
    try:
        "┌–".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _shown(value: object) -> str:
    words = {True: "yes", False: "no"}
    text = words[value] if isinstance(value, bool) else str(value)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
