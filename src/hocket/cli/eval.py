"""`hocket eval`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from tyro.conf import arg

from hocket.cli import adapters
from hocket.cli import jobs as jobs_of_a_file
from hocket.cli.subject import Subject, parse, refuse_bad_run_file
from hocket.cli.values import Bytes, Names


@dataclass(frozen=True, kw_only=True)
class Eval(Subject):
    """Run a policy on every task of the named envs, many episodes at once, and report success per
    task, per suite and overall, with intervals. The flags of the named env and policy themselves
    are listed below once they are named: hocket eval --env NAME --policy NAME --help."""

    NOT_CONFIG: ClassVar[frozenset[str]] = frozenset({"config", "out", "json", "dry_run", "jobs"})

    episodes: int = 10
    """Trials of each task. All that are planned are run and counted."""
    lanes: Annotated[int | Literal["auto"], arg(metavar="N|auto")] = "auto"
    """Episodes that run at once, each in a process of its own. auto takes as many as keep the
    scarcer of cores and policy busy, within memory; 1 runs in this process, where a debugger
    works. The results do not depend on it."""
    replan: Annotated[int | None, arg(metavar="K")] = None
    """Execute only the first K actions of each chunk, then ask again. Fewer react sooner and cost
    more inferences; the default is the policy's own, or the whole chunk."""
    ensemble: Annotated[float | None, arg(metavar="M")] = None
    """Ask after every action (every K with --replan K) and average what the overlapping chunks
    say of a step, the i-th oldest weighing exp(-M i): temporal ensembling. ACT uses 0.01."""
    exact: bool = False
    """Pad every batch to one shape, so that results are the same to the bit whatever the number
    of lanes, for policies whose arithmetic depends on the batch size. Costs throughput."""
    max_steps: Annotated[int | None, arg(metavar="N")] = None
    """End episodes after N control steps (truncated), instead of each task's own limit."""
    retries: int = 2
    """Further attempts at a trial whose env crashed, hung or raised. Only when they are used up
    does the trial count as an error; an error is never a failure of the policy."""
    step_timeout_s: Annotated[float, arg(name="step-timeout", metavar="SECONDS")] = 60.0
    """A worker that makes no step for this long hangs: its attempt is lost, and it is replaced."""
    worker_memory: Bytes = None
    """Replace a worker that uses more than this (2G, 512M), once its attempt is over or lost."""
    recycle_after: Annotated[int | None, arg(metavar="N")] = None
    """Replace each worker after N episodes, for simulators that leak."""
    policy_devices: Annotated[Names, arg(metavar="DEVICE[,DEVICE...]")] = ()
    """Put a copy of the policy on each of these (cuda:0,cuda:1); they infer at the same time."""
    until: Literal["done", "decided"] = "done"
    """decided stops as soon as the comparison with --against is decided, by a paired test that
    stays valid however often one looks; --episodes is then the cap."""
    against: Annotated[str | None, arg(metavar="RUN")] = None
    """With --until decided: the run folder to compare with, which has run the same trials."""
    alpha: Annotated[float, arg(metavar="P")] = 0.05
    """With --until decided: how often it may decide where there is no difference."""
    record: Literal["none", "numbers", "full"] = "numbers"
    """What is kept of each step in the run folder. numbers: action, reward, state and the
    simulator's own state, from which video can be made later. full: every camera's picture too,
    without loss, as datasets need them."""
    video: Annotated[str, arg(metavar="none|first:N|failures|all")] = "first:1"
    """Which episodes get a video; first:N means of each task. Where the env's states are kept they
    are filmed after the run, in all cores' time, and `hocket video` can film more later; other
    envs are filmed while they run."""
    video_overlay: bool = False
    """Burn the task, the step and the outcome into videos."""
    sequential: Literal["paired", "step"] = "paired"
    """With --until decided: the test. paired bets on pairs that differ; step is the unpaired STEP
    test of the package sequentialized-barnard-tests, which must be installed."""
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
    if adapters.scan(arguments, "--jobs") is not None:
        return jobs_of_a_file.run(arguments)
    refuse_bad_run_file(arguments)
    parsed = parse(Eval, arguments, verb="eval")
    from rich.console import Console

    from hocket import cli
    from hocket.cli.results import conclude
    from hocket.records.run_file import new_folder
    from hocket.results.progress import Progress
    from hocket.runs.config import EvalConfig
    from hocket.runs.run import Run

    config = EvalConfig.from_plain(parsed.config)
    flags: Eval = parsed.flags
    out = new_folder(flags.out, config.env, config.policy)
    if flags.dry_run:
        from hocket.cli.dry_run import describe

        Console().print(describe(config, out))
        return cli.OK
    with Run.new(config, out) as planned:
        with Progress(quiet=flags.json and not sys.stderr.isatty()) as progress:
            report = planned.finish(readers=[progress])
        if planned.decider is not None and config.against is not None:
            sys.stderr.write(planned.decider.sentence(config.against) + "\n")
    return conclude(report, out, as_json=flags.json)
