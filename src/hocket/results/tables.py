"""A table of results that reads well in a terminal, a log and a notebook."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hocket.results.stats import Interval

if TYPE_CHECKING:
    from rich.table import Table as RichTable

UNDEFINED = "-"
_NARROWEST_NAME = 16
_GAP = "  "
"""What stands between two columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One line: a name, and a cell for each further column."""

    name: str
    cells: tuple[str, ...]
    kind: Literal["group", "item", "total"] = "item"
    """An item stands indented under its group; a total stands apart, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A table with names to the left and numbers to the right. A name that is too long goes on in
    the line below."""

    columns: tuple[str, ...]
    """The headings, that of the names first. A line break in one is kept."""
    rows: tuple[TableRow, ...]
    footer: str = ""

    def text(self, width: int = 80) -> str:
        """The table as plain text, at most `width` columns wide where the numbers allow it."""
        from hocket.results.terminal import Console

        numbers = zip(self.columns[1:], *(row.cells for row in self.rows), strict=True)
        sizes = [max(len(text) for text in "\n".join(some).split("\n")) for some in numbers]
        least = _NARROWEST_NAME + sum(sizes) + len(_GAP) * len(sizes)
        console = Console(
            width=max(width, least), file=io.StringIO(), color_system=None, force_jupyter=False
        )
        with console.capture() as printed:
            console.print(self.rich())
        return "\n".join(line.rstrip() for line in printed.get().splitlines())

    def rich(self) -> RichTable:
        """The table for rich's consoles, which decide on the width."""
        from rich import box
        from rich.padding import Padding
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
            caption=Text(self.footer) if self.footer else None,
            caption_justify="left",
            header_style="bold",
        )
        table.add_column(self.columns[0], overflow="fold", min_width=_NARROWEST_NAME)
        for column in self.columns[1:]:
            table.add_column(column, justify="right", no_wrap=True)
        for index, row in enumerate(self.rows):
            last = index + 1 == len(self.rows) or self.rows[index + 1].kind != "item"
            # Text, not markup: a task's name may hold brackets.
            name = Padding(Text(row.name), (0, 0, 0, 2 if row.kind == "item" else 0))
            style = "" if row.kind == "item" else "bold"
            table.add_row(name, *row.cells, style=style, end_section=last)
        return table

    def html(self) -> str:
        """The table for notebooks: no style sheet, no script, inherited colours."""
        cell = "padding:2px 10px;text-align:{};white-space:{}"
        number, name = cell.format("right", "nowrap"), cell.format("left", "normal")

        def line(tag: str, texts: Sequence[str], indent: str = "") -> str:
            first, *others = [html.escape(text).replace("\n", "<br>") for text in texts]
            cells = [f'<{tag} style="{number}">{text}</{tag}>' for text in others]
            return f'<tr><{tag} style="{name}">{indent}{first}</{tag}>{"".join(cells)}</tr>'

        lines = [line("th", self.columns)]
        for row in self.rows:
            tag, indent = ("td", "&emsp;") if row.kind == "item" else ("th", "")
            lines.append(line(tag, [row.name, *row.cells], indent))
        footer = f"<p>{html.escape(self.footer)}</p>" if self.footer else ""
        return f"<div><table>{''.join(lines)}</table>{footer}</div>"


def percent(share: float | None) -> str:
    """A share as text, such as `94.0 %`."""
    return UNDEFINED if share is None else f"{100 * share:.1f} %"


def interval_text(found: Interval | None, *, percents: bool = True) -> str:
    """An interval as text, such as `[83.8, 97.9]`; that of shares is in percent."""
    if found is None:
        return UNDEFINED
    if percents:
        return f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return f"[{number(found.low)}, {number(found.high)}]"


def signed(value: float | None, *, percents: bool) -> str:
    """A difference with its sign; that of rates is in percentage points."""
    if value is None:
        return UNDEFINED
    text = f"{100 * abs(value):.1f}" if percents else number(abs(value))
    return f"{'-' if value < 0 else '+'}{text}" if value else text


def number(value: float | None) -> str:
    """A number as text with about four digits, whatever its size."""
    if value is None:
        return UNDEFINED
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}"
