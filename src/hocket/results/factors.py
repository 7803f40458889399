"""What each disturbance costs: every arm against the clean one, trial by trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.results.comparing.compare import RunComparison, bounds_text, compare_runs, signed
from hocket.results.comparing.side import Side
from hocket.results.page.markup import Markup, Section, breakable, document, tag
from hocket.results.tables import UNDEFINED, ResultTable, TableRow, number, percent
from hocket.system.durable import write_atomic

CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorReport:
    """The clean arm, and the comparison of every other arm with it: a is disturbed, b is clean."""

    arms: tuple[tuple[str, RunComparison], ...]
    """By what was disturbed."""

    @classmethod
    def open(cls, folder: Path, arms: Sequence[tuple[str, str]]) -> FactorReport:
        """The report of arms that lie in a folder, given as factor and folder name."""
        clean = Side.open(folder / CLEAN)
        return cls(
            arms=tuple(
                (factor, compare_runs(Side.open(folder / name), clean)) for factor, name in arms
            )
        )

    def table(self) -> ResultTable:
        rows = [_row(factor, found) for factor, found in self.arms]
        of = self.arms[0][1].comparison.of if self.arms else "success"
        footer = (
            f"{of.capitalize()} of each arm and of the clean one on the same trials, and the "
            f"paired difference with its interval. The p are not corrected for their number."
        )
        columns = ("factor", "n", "disturbed", "clean", "difference", "95 % interval", "p")
        return ResultTable(columns=columns, rows=tuple(rows), footer=footer)

    def to_json(self) -> dict[str, Any]:
        return {factor: found.to_json() for factor, found in self.arms}

    def save(self, folder: Path) -> Path:
        """Write factors.json and factors.html; gives the page."""
        write_atomic(folder / "factors.json", json.dumps(self.to_json(), indent=2).encode())
        notes = [tag("p", f"{factor}: {found.sentence}") for factor, found in self.arms]
        section = Section(anchor="factors", title="Factors", body=_html(self.table()))
        words = Section(anchor="words", title="In words", body=tag("div", *notes))
        page = document(
            title=folder.name,
            kicker="hocket eval --perturb",
            head=tag("p", f"{len(self.arms)} arms beside the clean one.", class_="big-note"),
            sections=[section, words],
        )
        target = folder / "factors.html"
        write_atomic(target, page.encode())
        return target


def _html(table: ResultTable) -> Markup:
    """A table that is scrolled where the screen is narrower than its numbers."""
    head = tag("tr", *(tag("th", column) for column in table.columns))
    rows = [
        tag("tr", tag("td", breakable(row.name)), *(tag("td", cell) for cell in row.cells))
        for row in table.rows
    ]
    wide = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", tag("div", wide, style="overflow-x:auto"), tag("p", table.footer))


def _row(factor: str, found: RunComparison) -> TableRow:
    overall, is_rate = found.comparison.overall, found.comparison.of == "success"
    shown = percent if is_rate else number
    return TableRow(
        name=factor,
        cells=(
            f"{overall.n:,}",
            shown(overall.a),
            shown(overall.b),
            signed(overall.value, percents=is_rate),
            bounds_text(overall, percents=is_rate),
            UNDEFINED if overall.p_value is None else f"{overall.p_value:.2g}",
        ),
    )
