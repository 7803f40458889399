"""`hocket eval`, of one run or of a file of jobs, and the other verbs that end with a report on the
screen: `hocket resume` and `hocket report`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from hocket.cli import FAILED, INTERRUPTED, OK
from hocket.cli.flags.flag import scan
from hocket.cli.flags.parse import (
    FileFlags,
    knobs_of,
    parse,
    parse_alone,
    parse_run,
    refuse_bad_run_file,
)
from hocket.cli.flags.plan import RunFlags, RunPlan, following, machines_of, make_readers
from hocket.cli.flags.values import format_bytes
from hocket.cli.watch import shown
from hocket.core.contracts.recorder import Followed
from hocket.core.plugins import share_settings
from hocket.errors import UsageError
from hocket.runs.arms import Jobs, arms_of, folder_of, load_jobs
from hocket.runs.config import EvalConfig
from hocket.system import machine
from hocket.system.waits import awaiting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from hocket.core.contracts.recorder import Reader
    from hocket.results.arms import ArmTable
    from hocket.results.report import Report
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.elsewhere import Elsewhere
    from hocket.runs.run import Run

_WIDEST = 1000
"""Columns of text that a table of runs may have; it has fewer."""


@dataclass(frozen=True, kw_only=True)
class Eval(RunFlags, FileFlags):
    """Run a policy on every task of the named envs, many episodes at once, and report success per
    task, per suite and overall, with intervals. Each named env, policy and --runtime, and --method
    rtc, adds its own flags below."""

    arms: Annotated[str | None, arg(name="perturb", metavar="FACTOR[,FACTOR...]")] = None
    """Disturb what the policy sees or does, by trial and step: image:blur=2, image:noise=0.1,
    image:occlude=0.2, image:blank, prompt:empty, prompt:file=F, state:noise=0.02,
    action:noise=0.02, camera:shift=0.05, light:dim=0.5 (the last two with MuJoCo). Each of them,
    separated by commas, is a run of its own (A+B disturbs both at once), at every --delay; all are
    compared with a clean run of the same trials."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder itself, for run.yaml and report.json; must be new or empty. The default is
    runs/TIME-ENV-POLICY. Of several runs: the folder that holds theirs, and jobs.html."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""
    jobs: Annotated[Path | None, arg(metavar="FILE")] = None
    """Make many runs from one file instead: hocket eval --jobs FILE --help tells more."""


@dataclass(frozen=True, kw_only=True)
class JobFlags(RunFlags):
    """Make many runs from one file: `shared:` settings, and `runs:` by name with their own, each
    setting named as in run.yaml; `base:` names the one that the others are compared with. Workers
    are kept warm between runs that need the same ones. A run that cannot be made does not stop the
    others; the same command again goes on where it stopped."""

    jobs: Annotated[Path, arg(metavar="FILE")]
    """The file of jobs."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("runs/jobs")
    """Holds one run folder for each job, jobs.html and jobs.json."""
    json: bool = False
    """Print all reports as JSON on standard output."""
    dry_run: bool = False
    """Print what would be run, and build no simulator."""


@dataclass(frozen=True, kw_only=True)
class Resume(RunFlags):
    """Finish a run that was interrupted, by Ctrl-C, a crash or kill -9: finished episodes stay and
    are counted once, the others run again from their start. A finished run is only reported."""

    folder: Positional[Path]
    """The run folder."""
    infer_timeout_s: Annotated[float | None, arg(name="infer-timeout", metavar="SECONDS")] = None
    """Another deadline for the policy than the run was begun with; see hocket eval --help."""
    allow_changes: bool = False
    """Go on though code, packages, weights or other files are not what the folder says they were.
    The report then tells which episodes are of what, and claims no exactness."""
    json: bool = False
    """Print the report as JSON on standard output; progress goes to standard error."""


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Make report.json and report.html of a run again, from what its folder holds: of one that was
    killed, of one that still goes on, or after videos were rendered."""

    folder: Positional[Path]
    """The run folder."""
    bundle: bool = False
    """Write bundle.html beside the page: one file to be sent, with films inside, failures first."""
    bundle_mb: Annotated[float, arg(metavar="MB")] = 20.0
    """As many films go into the bundle as fit into so many megabytes."""
    json: bool = False
    """Print the report as JSON on standard output."""
    json_episodes: bool = False
    """List the episodes in report.json, and in what --json prints, however many there are. Without
    it, above 1,000, they are in episodes.parquet beside it, a row each."""


def run(arguments: Sequence[str]) -> int:
    """Evaluate; 1 where trials ended as errors, 130 after Ctrl-C."""
    plan = plan_of(arguments)
    if plan.base is None and len(plan.runs) > 1 and scan(arguments, "--jobs") is None:
        sys.stderr.write("note: No run is without a delay to compare with: add 0 to --delay.\n")
    if plan.is_dry:
        from hocket.results.terminal import Console

        Console().print(_describe(plan))
        return OK
    return _make_run(plan) if plan.is_one else _make_jobs(plan)


def plan_of(arguments: Sequence[str]) -> RunPlan[EvalConfig]:
    """What the arguments ask for."""
    if scan(arguments, "--jobs") is None:
        refuse_bad_run_file(arguments)
        parsed = parse_run(Eval, knobs_of(EvalConfig), arguments, verb="eval")
        return plan_runs(parsed.flags, parsed.config)
    why = "the settings of its runs are in the file"
    flags = parse_alone(JobFlags, arguments, verb="eval", with_="--jobs", why=why)
    return _planned(flags, load_jobs(flags.jobs))


def plan_runs(flags: Eval, config: Mapping[str, Any]) -> RunPlan[EvalConfig]:
    """The plan of flags and the configuration beside them: one run, or one for each disturbance
    and delay."""
    return _planned(flags, arms_of(config, flags.arms))


def _planned(flags: Eval | JobFlags, jobs: Jobs) -> RunPlan[EvalConfig]:
    for config in jobs.runs.values():
        is_here = config.runtime == "auto" and config.lanes == 1 and config.env_python is None
        if config.worker_memory is not None and (is_here or config.runtime == "inline"):
            raise UsageError(
                "--worker-memory limits processes, and one lane runs in this one: add --runtime "
                "local."
            )
    return RunPlan.of(
        flags,
        jobs.runs,
        base=jobs.base,
        out=flags.out,
        is_json=flags.json,
        is_dry=flags.dry_run,
    )


def _make_run(plan: RunPlan[EvalConfig]) -> int:
    """Make the one run of a plan."""
    from hocket.records.run_file import new_folder
    from hocket.results.showing.progress import ProgressDisplay

    (config,) = plan.runs.values()
    with machines_of(plan.machines) as machines, contextlib.ExitStack() as imports:
        imports.enter_context(awaiting("imports"))  # before the first line, which says so
        with ProgressDisplay(age_s=machine.process_age_s()) as progress:
            from hocket.results.run_folder import clear_unbegun
            from hocket.runs.protocols import protocol_lines
            from hocket.runs.run import Run

            imports.close()
            if plan.out is not None:
                clear_unbegun(plan.out)
            out = new_folder(plan.out, config.env, config.policy)
            with Run.new(config, out) as planned:
                for sentence in protocol_lines(config, planned.assembly.tasks()):
                    sys.stderr.write(f"note: {sentence}\n")
                return finish(planned, progress, out, plan, machines)


def finish(
    run: Run,
    progress: ProgressDisplay,
    out: Path,
    plan: RunPlan[EvalConfig],
    machines: Elsewhere | None,
) -> int:
    """Run what is left, and print the report as soon as it is known, before anything is filmed."""
    code = OK

    def tell(report: Report) -> None:
        nonlocal code
        with progress.paused():
            is_kept = bool(report.episodes) or not run.is_new
            code = _conclude(report, out, as_json=plan.is_json, is_kept=is_kept)

    about = Followed(folder=out, config=run.config.to_plain())
    with shown(out, wanted=plan.is_watched), following(plan.readers, about) as readers:
        run.finish(readers=[progress, *readers], elsewhere=machines, on_report=tell)
    return code


def _make_jobs(plan: RunPlan[EvalConfig]) -> int:
    """Make the runs of a plan, and compare them with their base where they have one."""
    from hocket.records.run_file import new_folder
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.evaluation import run_jobs

    first = next(iter(plan.runs.values()))
    out = plan.out or new_folder(None, first.env, first.policy)

    def readers(name: str) -> Sequence[Reader]:
        sys.stderr.write(f"-- {name}\n")
        about = Followed(folder=out / folder_of(name), config=plan.runs[name].to_plain())
        return [ProgressDisplay().__enter__(), *make_readers(plan.readers, about)]

    jobs = Jobs(runs=plan.runs, base=plan.base)
    with (
        machines_of(plan.machines, more=True) as machines,
        shown(out, wanted=plan.is_watched, is_one_run=False),
    ):
        table = run_jobs(jobs, out, readers=readers, elsewhere=machines)
    if plan.is_json:
        sys.stdout.write(json.dumps(table.to_json(), indent=2) + "\n")
    else:
        _show_table(table, out)
    reports = [arm.report for arm in table.arms if arm.report is not None]
    if any(not report.complete for report in reports):
        return INTERRUPTED
    is_sound = not any(arm.error for arm in table.arms)
    return OK if is_sound and not any(report.overall.errors for report in reports) else FAILED


def _show_table(table: ArmTable, folder: Path) -> None:
    from hocket.results.terminal import Console

    console, shown_table = Console(), table.table().rich()
    # Lines that a narrow terminal breaks say more than columns that are left out.
    whole = console.measure(shown_table, options=console.options.update(max_width=_WIDEST)).maximum
    Console(width=max(console.width, whole)).print(shown_table)
    for name, why in table.failed:
        console.print(f"{name}: {why}", highlight=False, style="red")
    for arm in table.arms:
        if arm.report is None and arm.error is None:
            console.print(f"{arm.name}: not begun", highlight=False)
    where = f"Runs, jobs.html and jobs.json: {folder}"
    console.print(where, highlight=False, soft_wrap=True)


def _describe(plan: RunPlan[EvalConfig]) -> RenderableType:
    """The plan; of one run also its trials per task, and what of the settings each env takes."""
    from rich.console import Group
    from rich.text import Text

    from hocket.runs.assembly import Assembly
    from hocket.runs.protocols import protocol_lines

    lines = plan.describe()
    if not plan.is_one:
        return Group(*map(Text, lines))
    (config,) = plan.runs.values()
    shares = share_settings("envs", config.env, config.env_config)
    lines += [f"settings of {name}: {share}" for name, share in shares.items() if share]
    lines += protocol_lines(config, Assembly(config).tasks())
    lines.append(f"here: {machine.cores()} cores, {format_bytes(machine.memory_bytes())} memory")
    return Group(_trial_table(config), *map(Text, lines))


def _trial_table(config: EvalConfig) -> Table:
    """The planned trials of each task."""
    from rich.table import Table

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
    return table


def resume(arguments: Sequence[str]) -> int:
    """Run what is left of a run."""
    flags = parse(Resume, arguments, verb="resume")
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.run import Run

    plan: RunPlan[EvalConfig] = RunPlan.of(flags, {}, is_json=flags.json)
    deadline_s, allows = flags.infer_timeout_s, flags.allow_changes
    with Run.open(flags.folder, infer_timeout_s=deadline_s, allow_changes=allows) as unfinished:
        if not unfinished.remaining:
            sys.stderr.write(
                f"Nothing is left to run: all {len(unfinished.trials)} planned trials have ended.\n"
            )
        with (
            machines_of(plan.machines) as machines,
            ProgressDisplay(age_s=machine.process_age_s()) as progress,
        ):
            return finish(unfinished, progress, flags.folder, plan, machines)


def report(arguments: Sequence[str]) -> int:
    """Rebuild; 0 whatever the run came to."""
    flags = parse(ReportFlags, arguments, verb="report")
    from hocket.records.parquet import find_damage
    from hocket.results.page.report_page import FILE_NAME, write_bundle
    from hocket.results.run_folder import rebuild_report

    found = rebuild_report(flags.folder, listed=flags.json_episodes)
    for sentence in find_damage(flags.folder):
        sys.stderr.write(f"warning: {sentence}\n")
    where = f"Page: {flags.folder / FILE_NAME}"
    if not os.access(flags.folder, os.W_OK):
        where = f"{flags.folder} cannot be written: its page and report.json stay as they are."
    elif flags.bundle:
        where += f"\nBundle: {flags.folder / write_bundle(flags.folder, flags.bundle_mb).name}"
    _show_report(found, where, as_json=flags.json, listed=flags.json_episodes)
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


def _show_report(report: Report, *lines: str, as_json: bool, listed: bool = False) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(listed=listed), indent=2) + "\n")
        return
    from hocket.results.terminal import Console

    console = Console()
    console.print(report.table())
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
