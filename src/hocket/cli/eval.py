"""`hocket eval`, of one run or of a file of jobs, and the other verbs that end with a report on the
screen: `hocket resume` and `hocket report`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from hocket.cli import FAILED, INTERRUPTED, OK
from hocket.cli.flags.machines import MachineFlags, machines_of
from hocket.cli.flags.parse import FileFlags, knobs_of, parse, parse_run, refuse_bad_run_file, scan
from hocket.cli.flags.telemetry import told_to
from hocket.cli.flags.values import format_bytes
from hocket.cli.watch import shown
from hocket.core.plugins import share_settings
from hocket.runs.config import EvalConfig
from hocket.system import machine
from hocket.system.waits import awaiting

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hocket.core.contracts.recorder import Reader
    from hocket.results.report import Report
    from hocket.results.showing.progress import Progress
    from hocket.runs.elsewhere import Elsewhere
    from hocket.runs.jobs import Job, JobResult
    from hocket.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class Eval(MachineFlags, FileFlags):
    """Run a policy on every task of the named envs, many episodes at once, and report success per
    task, per suite and overall, with intervals. The flags of the named env and policy themselves
    are listed below once they are named: hocket eval --env NAME --policy NAME --help."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder itself, for run.yaml and report.json; must be new or empty. The default is
    runs/TIME-ENV-POLICY."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""
    watch: bool = False
    """Show the run in the browser while it goes on, from a process beside it, and print the page's
    address; see hocket watch --help."""
    telemetry: Annotated[str | None, arg(metavar="otlp[=URL]")] = None
    """Send runs, episodes, chunks, inferences, stalls and videos as OpenTelemetry spans and metrics
    to a collector, by default at http://localhost:4318 (pip install 'hocket[otel]')."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""
    jobs: Annotated[Path | None, arg(metavar="FILE")] = None
    """Make many runs from one file instead: hocket eval --jobs FILE --help tells more."""


@dataclass(frozen=True, kw_only=True)
class Jobs(MachineFlags):
    """Make many runs from one file: `shared:` settings, and `runs:` by name with their own, each
    setting named as in run.yaml. Workers are kept warm between runs that need the same ones. A run
    that cannot be made does not stop the others; the same command again goes on where it stopped.
    """

    jobs: Annotated[Path, arg(metavar="FILE")]
    """The file of jobs."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("runs/jobs")
    """Holds one run folder for each job, and jobs.html."""
    watch: bool = False
    """Show the runs in the browser while they go on."""
    json: bool = False
    """Print all reports as JSON on standard output, by name."""


@dataclass(frozen=True, kw_only=True)
class Resume(MachineFlags):
    """Finish a run that was interrupted, by Ctrl-C, a crash or kill -9: finished episodes stay and
    are counted once, the others run again from their start. A finished run is only reported."""

    folder: Positional[Path]
    """The run folder."""
    infer_timeout_s: Annotated[float | None, arg(name="infer-timeout", metavar="SECONDS")] = None
    """Another deadline for the policy than the run was begun with; see hocket eval --help."""
    watch: bool = False
    """Show the run in the browser while it goes on; see hocket watch --help."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Make report.json and report.html of a run again, from what its folder holds: of one that was
    killed, of one that still goes on, or after videos were rendered."""

    folder: Positional[Path]
    """The run folder."""
    json: bool = False
    """Print the report as JSON on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Evaluate; 1 where trials ended as errors, 130 after Ctrl-C."""
    if scan(arguments, "--jobs") is not None:
        return _run_jobs(arguments)
    refuse_bad_run_file(arguments)
    knobs = knobs_of(EvalConfig)
    parsed = parse_run(Eval, knobs, arguments, verb="eval")
    from hocket.records.run_file import new_folder

    flags = parsed.flags
    arms = scan(arguments, "--perturb")
    if arms is not None:  # one that only stands in the file is of that run alone
        parsed.config["perturb"] = ""
    if "," in str(parsed.config["delay"]):
        return _run_sweep(parsed.config, flags)
    config = EvalConfig.from_plain(parsed.config)
    if arms is not None and not flags.dry_run:
        return _run_arms(config, arms, flags)
    if flags.dry_run:
        from hocket.results.terminal import Console

        Console().print(_describe(config, new_folder(flags.out, config.env, config.policy)))
        return OK
    from hocket.results.showing.progress import Progress

    with machines_of(flags) as machines, contextlib.ExitStack() as imports:
        imports.enter_context(awaiting("imports"))  # before the first line, which says so
        with Progress(age_s=machine.process_age_s()) as progress:
            from hocket.runs.run import Run
            from hocket.runs.run_folder import clear_unbegun

            imports.close()
            if flags.out is not None:
                clear_unbegun(flags.out)
            out = new_folder(flags.out, config.env, config.policy)
            with (
                Run.new(config, out) as planned,
                shown(out, wanted=flags.watch),
                told_to(flags.telemetry, out) as told,
            ):
                readers = [progress, *told]
                return _finish(planned, progress, readers, out, machines, as_json=flags.json)


def _finish(
    run: Run,
    progress: Progress,
    readers: Sequence[Reader],
    out: Path,
    machines: Elsewhere | None,
    *,
    as_json: bool,
) -> int:
    """Run what is left, and print the report as soon as it is known, before anything is filmed."""
    code = OK

    def tell(report: Report) -> None:
        nonlocal code
        with progress.paused():
            is_kept = bool(report.episodes) or not run.is_new
            code = _conclude(report, out, as_json=as_json, is_kept=is_kept)

    run.finish(readers=readers, elsewhere=machines, on_report=tell)
    return code


def _describe(config: EvalConfig, out: Path) -> RenderableType:
    """The planned trials per task, the lanes, and each adapter's settings."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from hocket.runs.assembly import Assembly

    trials = Assembly(config).plan(config.seed, config.episodes)
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


def _run_jobs(arguments: Sequence[str]) -> int:
    """Make every run of a file of jobs."""
    flags = parse(Jobs, arguments, verb="eval")
    from hocket.runs.jobs import load_jobs, run_jobs

    with (
        machines_of(flags, more=True) as machines,
        shown(flags.out, wanted=flags.watch, is_one_run=False),
    ):
        results = run_jobs(load_jobs(flags.jobs), flags.out, reader=_follow, elsewhere=machines)
    if flags.json:
        document = {r.job.name: r.report.to_json() if r.report else None for r in results}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show_jobs(results, flags.out)
    return _exit_code(results)


def _run_arms(config: EvalConfig, arms: str, flags: Eval) -> int:
    """Run a clean arm and one for each disturbance, on the same trials, and compare them."""
    from hocket.records.run_file import new_folder
    from hocket.results.factors import FactorReport
    from hocket.results.terminal import Console
    from hocket.runs.jobs import arms_of, run_jobs

    jobs = arms_of(config, arms)
    out = flags.out or new_folder(None, config.env, f"{config.policy}-arms")
    with machines_of(flags, more=True) as machines:
        results = run_jobs(list(jobs.values()), out, reader=_follow, elsewhere=machines)
    code = _exit_code(results)
    if any(result.report is None or not result.report.complete for result in results):
        _show_jobs(results, out)
        return code or FAILED
    report = FactorReport.open(out, [(arm, job.name) for arm, job in jobs.items() if arm])
    page = report.save(out)
    if flags.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        console = Console()
        console.print(report.table().rich())
        console.print(f"Runs: {out}. Page: {page}", highlight=False, soft_wrap=True)
    return code


def _follow(job: Job) -> Progress:
    """Show the progress of a job, under its name."""
    from hocket.results.showing.progress import Progress

    sys.stderr.write(f"-- {job.name}\n")
    progress = Progress()
    progress.__enter__()
    return progress


def _run_sweep(plain: dict[str, Any], flags: Eval) -> int:
    """Make a run for each delay, on the same trials, and report what latency costs."""
    from hocket.records.run_file import new_folder
    from hocket.results.terminal import Console
    from hocket.runs.sweep import run_sweep, sweep_jobs

    jobs = sweep_jobs(plain)
    first = jobs[0].config
    if flags.dry_run:
        for job in jobs:
            Console().print(f"{job.name}: --delay {job.config.delay}", highlight=False)
        return OK
    folder = flags.out or new_folder(None, first.env, first.policy)
    with (
        machines_of(flags, more=True) as machines,
        shown(folder, wanted=flags.watch, is_one_run=False),
    ):
        results, report = run_sweep(jobs, folder, reader=_follow, elsewhere=machines)
    if flags.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        _show_failed(results)
        Console().print(report.table().rich())
        where = f"Runs, delays.json and delays.html: {folder}"
        Console().print(where, highlight=False, soft_wrap=True)
    return _exit_code(results)


def _show_jobs(results: Sequence[JobResult], folder: Path) -> None:
    from hocket.results.terminal import Console
    from hocket.runs.jobs import summary

    console = Console()
    console.print(summary(results).rich())
    _show_failed(results)
    console.print(f"Runs and jobs.html: {folder}", highlight=False, soft_wrap=True)


def _show_failed(results: Sequence[JobResult]) -> None:
    from hocket.results.terminal import Console

    console = Console()
    for result in results:
        if result.error is not None:
            console.print(f"{result.job.name}: {result.error}", highlight=False, style="red")
        elif result.report is None:
            console.print(f"{result.job.name}: not begun", highlight=False)


def _exit_code(results: Sequence[JobResult]) -> int:
    if any(r.report is not None and not r.report.complete for r in results):
        return INTERRUPTED
    if any(r.error or (r.report is not None and r.report.overall.errors) for r in results):
        return FAILED
    return OK


def resume(arguments: Sequence[str]) -> int:
    """Run what is left of a run."""
    flags = parse(Resume, arguments, verb="resume")
    from hocket.results.showing.progress import Progress
    from hocket.runs.run import Run

    with Run.open(flags.folder, infer_timeout_s=flags.infer_timeout_s) as unfinished:
        if not unfinished.remaining:
            sys.stderr.write(
                f"Nothing is left to run: all {len(unfinished.trials)} planned trials have ended.\n"
            )
        with (
            machines_of(flags) as machines,
            shown(flags.folder, wanted=flags.watch),
            Progress(age_s=machine.process_age_s()) as progress,
        ):
            out, readers = flags.folder, [progress]
            return _finish(unfinished, progress, readers, out, machines, as_json=flags.json)


def report(arguments: Sequence[str]) -> int:
    """Rebuild; 0 whatever the run came to."""
    flags = parse(ReportFlags, arguments, verb="report")
    from hocket.records.parquet import find_damage
    from hocket.results.page.report_page import FILE_NAME
    from hocket.runs.run_folder import rebuild_report

    found = rebuild_report(flags.folder)
    for sentence in find_damage(flags.folder):
        sys.stderr.write(f"warning: {sentence}\n")
    where = f"Page: {flags.folder / FILE_NAME}"
    if not os.access(flags.folder, os.W_OK):
        where = f"{flags.folder} cannot be written: its page and report.json stay as they are."
    _show_report(found, where, as_json=flags.json)
    return OK


def _conclude(report: Report, folder: Path, *, as_json: bool, is_kept: bool = True) -> int:
    """Print a run's report; 1 where trials ended as errors, 130 where some are left."""
    lines = [f"Run folder: {folder}"]
    if not is_kept:
        lines = ["No episode had ended: no run folder is left."]
    elif not report.complete:
        left = report.planned - len(report.episodes)
        lines.append(
            f"{left} of {report.planned} trials are left. Finish them with: hocket resume {folder}"
        )
    _show_report(report, *lines, as_json=as_json)
    if not report.complete:
        return INTERRUPTED
    return FAILED if report.overall.errors else OK


def _show_report(report: Report, *lines: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
        return
    from hocket.results.terminal import Console

    console = Console()
    console.print(report.table())
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
