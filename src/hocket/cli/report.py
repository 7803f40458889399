"""`hocket report`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from hocket.cli.flags import parse


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
    flags: ReportFlags = parse(ReportFlags, arguments, verb="report")
    from rich.console import Console

    from hocket import cli
    from hocket.results.page.report_page import FILE_NAME
    from hocket.runs.run import rebuild_report

    report = rebuild_report(flags.folder)
    if flags.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
        return cli.OK
    console = Console()
    console.print(report.table())
    console.print(f"Page: {flags.folder / FILE_NAME}", highlight=False, soft_wrap=True)
    return cli.OK
