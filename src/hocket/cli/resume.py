"""`hocket resume`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from hocket.cli.parse import parse


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Finish a run that was interrupted, by Ctrl-C, a crash or kill -9: finished episodes stay and
    are counted once, the others run again from their start. A finished run is only reported."""

    folder: Positional[Path]
    """The run folder."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""


def run(arguments: Sequence[str]) -> int:
    """Run what is left of a run."""
    flags = parse(Resume, arguments, verb="resume")
    from hocket.cli.report import conclude
    from hocket.results.progress import Progress
    from hocket.runs.run import Run

    with Run.open(flags.folder) as unfinished:
        left = len(unfinished.remaining)
        if not left:
            sys.stderr.write(
                f"Nothing is left to run: all {len(unfinished.trials)} planned trials have ended.\n"
            )
            return conclude(unfinished.finish(), flags.folder, as_json=flags.json)
        with Progress(quiet=flags.json and not sys.stderr.isatty()) as progress:
            report = unfinished.finish(readers=[progress])
    return conclude(report, flags.folder, as_json=flags.json)
