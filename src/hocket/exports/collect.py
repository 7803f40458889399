"""Collects demonstrations of a policy, a number of each task, as a dataset.

A collection is a run, kept beside the dataset, so that an interrupted one goes on where it was.
Where only successes are wanted, tasks that lack some get further trials, with the next seeds; of
the successes the first ones by seed are taken, and not the first that came in.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import Event, SpecLearned
from hocket.core.plugins import did_you_mean
from hocket.engine.trials import Task
from hocket.errors import ConfigError, HocketError, PolicyHungError, UsageError
from hocket.exports import FORMATS, export_run, refuse_existing
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import Choice, ExportConfig, Watcher, untimed
from hocket.runs.demonstrations.episodes import may_have_cameras
from hocket.runs.elsewhere import Elsewhere
from hocket.runs.evaluation import open_run
from hocket.system.interpreter import examine_python
from hocket.workers.sinks.encoder import Quality, require_encoder
from hocket.workers.sinks.video import is_rendered_later

RUN = "run"
"""The target that is the run folder alone, without a dataset."""
_LEAST_RATE = 0.05
"""The success rate that is assumed at least, also where a task has had no success yet: with a rate
of 0 no number of further trials would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """What is collected."""

    run: EvalConfig
    """`episodes` is how many of each task go into the dataset."""
    to: str = "lerobot"
    failures: bool = False
    """Take every episode, whatever became of it, instead of successes alone."""
    most: int | None = None
    """Trials of each task after which a lack of successes is an error; None is five times the
    episodes."""
    export: ExportConfig = field(default_factory=ExportConfig)

    def __post_init__(self) -> None:
        targets = ["lerobot", "hdf5", RUN]
        if self.to not in targets:
            known = ", ".join(targets)
            raise ConfigError(
                f"Nothing is collected to {self.to!r}.{did_you_mean(self.to, targets)} Known: "
                f"{known}."
                + (" Export the run afterwards: hocket export." if self.to in FORMATS else "")
            )
        if self.most is not None and self.most < self.run.episodes:
            raise ConfigError(
                f"most is {self.most}: fewer trials than the {self.run.episodes} episodes wanted."
            )
        if self.run.record == "none":
            raise ConfigError("record is 'none', but a dataset is made of what is recorded.")

    @property
    def cap(self) -> int:
        """The most trials of each task."""
        return self.most or 5 * self.run.episodes


class TooFewError(HocketError):
    """A task did not succeed often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What came of a collection."""

    run: Path
    episodes: int
    trials: int
    is_complete: bool
    """False after an interruption: the same call goes on."""


def collect(
    config: CollectConfig,
    out: Path,
    *,
    readers: Callable[[], Sequence[Reader]] = tuple,
    policy: Policy | None = None,
    watcher: Watcher | None = None,
    elsewhere: Elsewhere | None = None,
) -> Collected:
    """Collect into `out`, or go on with what an earlier call began. `readers` is called anew for
    each leg of the run; `elsewhere` runs it on other machines."""
    folder = run_folder(out, config.to)
    config = replace(config, run=_recorded(config.run))
    if config.to != RUN:
        refuse_existing(out.absolute())
    with contextlib.ExitStack() as stack:
        trials = _run_all(config, folder, policy, readers, elsewhere, stack)
    if trials is None:
        return Collected(run=folder, episodes=0, trials=0, is_complete=False)
    count = sum(min(config.run.episodes, n) for n in _counted(config, trials).values())
    if config.to != RUN:
        outcomes = () if config.failures else (Outcome.SUCCESS.value,)
        choice = Choice(outcomes=outcomes, first=config.run.episodes)
        export_run(folder, config.to, out, replace(config.export, choice=choice), watcher)
    return Collected(run=folder, episodes=count, trials=len(trials), is_complete=True)


def run_folder(out: Path, to: str) -> Path:
    """The run's folder: `out` itself, or one beside the dataset."""
    return out if to == RUN else out.with_name(f"{out.name}.run")


def _run_all(
    config: CollectConfig,
    folder: Path,
    policy: Policy | None,
    readers: Callable[[], Sequence[Reader]],
    elsewhere: Elsewhere | None,
    stack: contextlib.ExitStack,
) -> list[Episode] | None:
    """Run until every task has enough; returns all episodes, or None after an interruption. A
    policy of our own is made for the first round, kept for the others, and closed by `stack`."""
    plan: list[Trial] = []
    while True:
        with open_run(config.run, folder) as run:
            run.extend(plan)
            if policy is None and elsewhere is None and run.remaining:
                policy = run.assembly.policy(run.remaining)
                stack.callback(policy.close)
            followers = (*readers(), _Refusal(config))
            try:
                report = run.finish(policy=policy, readers=followers, elsewhere=elsewhere)
            except PolicyHungError:
                stack.pop_all()  # To close what never returned might never return either.
                raise
            if not report.complete:
                return None
            episodes = list(report.episodes)
            plan = _further(config, run.trials, episodes)
        if not plan:
            return episodes


def _recorded(run: EvalConfig) -> EvalConfig:
    """The same, with what of each step has to be kept. Rows of a batched simulator may be shown
    again in an env of their own; where there is none, everything is kept while they run."""
    assembly = Assembly(run)
    if assembly.has_rows_alone:
        return replace(run, record="full")
    return run if run.record == "full" or assembly.is_batched else replace(run, record="data")


class _Refusal:
    """A reader that stops a collection whose dataset would lack its rate or its pictures, rather
    than let it run to its end first."""

    def __init__(self, config: CollectConfig) -> None:
        self._needs_rate = config.to == "lerobot" and config.export.fps is None
        self._python = config.run.env_python

    def on(self, event: Event) -> None:
        if not isinstance(event, SpecLearned):
            return
        spec = event.spec
        if self._needs_rate and not spec.task.control_rate:
            raise UsageError(untimed(spec.task.name))
        if is_rendered_later(spec.abilities) or not may_have_cameras(spec):
            return
        require_encoder(Quality(lossless=True).codec)
        if self._python is not None and examine_python(self._python, "av"):
            raise UsageError(
                f"The env of {spec.task.name!r} cannot be shown again from states, and "
                f"{self._python} lacks the package 'av', with which its pictures would be kept: "
                f"{self._python} -m pip install 'av>=14'"
            )

    def close(self) -> None: ...


def _counted(config: CollectConfig, episodes: Sequence[Episode]) -> Counter[Task]:
    """How many episodes of each task may go into the dataset."""
    wanted = (
        (Outcome.SUCCESS, Outcome.FAILURE, Outcome.FINISHED)
        if config.failures
        else (Outcome.SUCCESS,)
    )
    return Counter(_task(e.trial) for e in episodes if e.outcome in wanted)


def _further(
    config: CollectConfig, trials: Sequence[Trial], episodes: Sequence[Episode]
) -> list[Trial]:
    """The trials that are still to run; none once every task has enough. The same outcomes always
    give the same trials."""
    good, ran = _counted(config, episodes), Counter(_task(trial) for trial in trials)
    wanted = config.run.episodes
    short = {task: wanted - good[task] for task in ran if good[task] < wanted}
    _refuse_hopeless(config, short, good, ran)
    last = {task: max(t.seed for t in trials if _task(t) == task) for task in short}
    further = []
    for (suite, name), lacks in short.items():
        rate = max(good[suite, name] / ran[suite, name], _LEAST_RATE)
        count = min(math.ceil(lacks / rate), config.cap - ran[suite, name])
        first = last[suite, name] + 1
        further += [Trial(suite=suite, task=name, seed=first + i) for i in range(count)]
    return further


def _refuse_hopeless(
    config: CollectConfig, short: Mapping[Task, int], good: Counter[Task], ran: Counter[Task]
) -> None:
    for task in short:
        if ran[task] >= config.cap:
            raise TooFewError(
                f"{task[0]}/{task[1]} has {good[task]} of {config.run.episodes} wanted episodes "
                f"after {ran[task]} trials. Allow more with --most, take failures too with "
                f"--failures, or ask for fewer."
            )


def _task(trial: Trial) -> Task:
    return trial.suite, trial.task
