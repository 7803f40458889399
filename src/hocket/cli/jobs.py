"""`hocket eval --jobs`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from hocket.cli.parse import parse

if TYPE_CHECKING:
    from hocket.runs.jobs import JobResult


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Make many runs from one file: `shared:` settings, and `runs:` by name with their own, each
    setting named as in run.yaml. Workers are kept warm between runs that need the same ones. A run
    that cannot be made does not stop the others; the same command again goes on where it stopped.
    """

    jobs: Annotated[Path, arg(metavar="FILE")]
    """The file of jobs."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("runs/jobs")
    """Holds one run folder for each job, and jobs.html."""
    json: bool = False
    """Print all reports as JSON on standard output, by name."""


def run(arguments: Sequence[str]) -> int:
    """Make every run of a file of jobs."""
    flags = parse(Jobs, arguments, verb="eval")
    from hocket.results.progress import Progress
    from hocket.runs.jobs import load_jobs, run_jobs

    jobs = load_jobs(flags.jobs)
    quiet = flags.json and not sys.stderr.isatty()

    def follow(job: object) -> Progress:
        sys.stderr.write(f"-- {getattr(job, 'name', job)}\n")
        progress = Progress(quiet=quiet)
        progress.__enter__()
        return progress

    results = run_jobs(jobs, flags.out, reader=follow)
    if flags.json:
        document = {r.job.name: r.report.to_json() if r.report else None for r in results}
        sys.stdout.write(json_format.dumps(document, indent=2) + "\n")
    else:
        _show(results, flags.out)
    return _exit_code(results)


def _show(results: Sequence[JobResult], folder: Path) -> None:
    from rich.console import Console

    from hocket.runs.jobs import summary

    console = Console()
    console.print(summary(results).rich())
    for result in results:
        if result.error is not None:
            console.print(f"{result.job.name}: {result.error}", highlight=False, style="red")
        elif result.report is None:
            console.print(f"{result.job.name}: not begun", highlight=False)
    console.print(f"Runs and jobs.html: {folder}", highlight=False, soft_wrap=True)


def _exit_code(results: Sequence[JobResult]) -> int:
    from hocket import cli

    if any(r.report is not None and not r.report.complete for r in results):
        return cli.INTERRUPTED
    if any(r.error or (r.report is not None and r.report.overall.errors) for r in results):
        return cli.FAILED
    return cli.OK
