"""How verbs that run trials end: the report on the screen, and an exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hocket import cli

if TYPE_CHECKING:
    from hocket.results.report import Report


def conclude(report: Report, folder: Path, *, as_json: bool) -> int:
    """Print a run's report; 1 where trials ended as errors, 130 where some are left."""
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        from rich.console import Console

        console = Console()
        console.print(report.table())
        console.print(f"Run folder: {folder}", highlight=False, soft_wrap=True)
        if not report.complete:
            console.print(
                f"{report.planned - len(report.episodes)} of {report.planned} trials are left. "
                f"Finish them with: hocket resume {folder}",
                highlight=False,
                soft_wrap=True,
            )
    if not report.complete:
        return cli.INTERRUPTED
    return cli.FAILED if report.overall.errors else cli.OK
