"""`hocket report`, and how the verbs that run trials end: with the report on the screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from hocket import cli
from hocket.cli.parse import parse

if TYPE_CHECKING:
    from hocket.results.report import Report


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Make report.json and report.html of a run again, from what its folder holds: of one that was
    killed, of one that still goes on, or after videos were rendered."""

    folder: Positional[Path]
    """The run folder."""
    json: bool = False
    """Print the report as JSON on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Rebuild; 0 whatever the run came to."""
    flags = parse(ReportFlags, arguments, verb="report")
    from hocket.results.page.report_page import FILE_NAME
    from hocket.runs.run import rebuild_report

    report = rebuild_report(flags.folder)
    _show(report, f"Page: {flags.folder / FILE_NAME}", as_json=flags.json)
    return cli.OK


def conclude(report: Report, folder: Path, *, as_json: bool) -> int:
    """Print a run's report; 1 where trials ended as errors, 130 where some are left."""
    lines = [f"Run folder: {folder}"]
    if not report.complete:
        left = report.planned - len(report.episodes)
        lines.append(
            f"{left} of {report.planned} trials are left. Finish them with: hocket resume {folder}"
        )
    _show(report, *lines, as_json=as_json)
    if not report.complete:
        return cli.INTERRUPTED
    return cli.FAILED if report.overall.errors else cli.OK


def _show(report: Report, *lines: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
        return
    from rich.console import Console

    console = Console()
    console.print(report.table())
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
