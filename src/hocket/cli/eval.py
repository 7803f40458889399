"""`hocket eval`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from hocket.cli import jobs as jobs_of_a_file
from hocket.cli.parse import FileFlags, knobs_of, parse_run, refuse_bad_run_file, scan
from hocket.cli.values import format_bytes
from hocket.core import machine
from hocket.core.plugins import share_settings
from hocket.runs.config import EvalConfig

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True)
class Eval(FileFlags):
    """Run a policy on every task of the named envs, many episodes at once, and report success per
    task, per suite and overall, with intervals. The flags of the named env and policy themselves
    are listed below once they are named: hocket eval --env NAME --policy NAME --help."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder itself, for run.yaml and report.json; must be new or empty. The default is
    runs/TIME-ENV-POLICY."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""
    jobs: Annotated[Path | None, arg(metavar="FILE")] = None
    """Make many runs from one file instead: hocket eval --jobs FILE --help tells more."""


def run(arguments: Sequence[str]) -> int:
    """Evaluate; 1 where trials ended as errors, 130 after Ctrl-C."""
    if scan(arguments, "--jobs") is not None:
        return jobs_of_a_file.run(arguments)
    refuse_bad_run_file(arguments)
    knobs = knobs_of(EvalConfig, without=("runtime",))
    parsed = parse_run(Eval, knobs, arguments, verb="eval")
    from rich.console import Console

    from hocket import cli
    from hocket.cli.report import conclude
    from hocket.records.run_file import new_folder
    from hocket.results.progress import Progress
    from hocket.runs.run import Run

    config, flags = EvalConfig.from_plain(parsed.config), parsed.flags
    out = new_folder(flags.out, config.env, config.policy)
    if flags.dry_run:
        Console().print(_describe(config, out))
        return cli.OK
    with Run.new(config, out) as planned:
        with Progress(quiet=flags.json and not sys.stderr.isatty()) as progress:
            report = planned.finish(readers=[progress])
        if planned.decider is not None and config.against is not None:
            sys.stderr.write(planned.decider.sentence(config.against) + "\n")
    return conclude(report, out, as_json=flags.json)


def _describe(config: EvalConfig, out: Path) -> RenderableType:
    """The planned trials per task, the lanes, and each adapter's settings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from hocket.runs.run import plan_trials

    trials = plan_trials(config)
    table = Table(title=f"{len(trials)} trials", title_justify="left", box=None)
    table.add_column("suite")
    table.add_column("task")
    table.add_column("trials", justify="right")
    table.add_column("seeds", justify="right")
    seeds: dict[tuple[str, str], list[int]] = {}
    for trial in trials:
        seeds.setdefault((trial.suite, trial.task), []).append(trial.seed)
    for (suite, task), known in seeds.items():
        span = f"{min(known)}" if min(known) == max(known) else f"{min(known)}-{max(known)}"
        table.add_row(suite, task, str(len(known)), span)
    cores, memory = machine.cores(), format_bytes(machine.memory_bytes())
    lines = [
        f"lanes: {config.lanes} ({cores} cores, {memory} memory here)",
        f"policy: {config.policy} {dict(config.policy_config) or ''}".rstrip(),
        *(
            f"env: {name} {settings or ''}".rstrip()
            for name, settings in share_settings("envs", config.env, config.env_config).items()
        ),
        f"run folder: {out} (not made)",
    ]
    return Group(table, *(Text(line) for line in lines))
