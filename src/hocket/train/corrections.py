"""Rounds of corrections: an expert takes over in states that the policy reached, and what it did
there is learnt from as demonstrations are (DAgger).

    <run>/corrections/0, 1, ...     run folders, as `hocket collect` writes them

Each says of every chunk who made it, and is exported as any run.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.core.data import Array, Outcome, Trial
from hocket.errors import UsageError
from hocket.records.folder import RunFolder
from hocket.records.step_rows import load_steps
from hocket.results.recorded import open_recorded
from hocket.runs.config import EvalConfig
from hocket.runs.demonstrations.chosen import Silent
from hocket.runs.run import Run
from hocket.runs.subject import Subject
from hocket.train.collect.curriculum import FIRST_SEED
from hocket.train.collect.plan import Task
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.collect.takeover import Takeover, TakeoverRule
from hocket.train.config import TrainConfig
from hocket.train.data.reading import append_data
from hocket.train.data.store import DATA, Wanted

CORRECTIONS = "corrections"


def require_corrections(config: TrainConfig) -> None:
    """Refuse an expert that is not there, and failures that are none."""
    if config.expert:
        plugins.find("policies", config.expert)
    if config.failures:
        _failed(Path(config.failures))


def _failed(folder: Path) -> list[Trial]:
    episodes = open_recorded(folder).report.episodes
    found = [episode.trial for episode in episodes if episode.outcome is Outcome.FAILURE]
    if not found:
        raise UsageError(f"--failures {str(folder)!r} has no episode that failed.")
    return found


class Corrections:
    """What is collected between the rounds of a run."""

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        tasks: list[Task],
        learner: CollectingPolicy,
        wanted: Wanted,
    ) -> None:
        """`learner` samples with the newest weights."""
        self._config, self._run, self._tasks = config, run, tasks
        self._learner, self._wanted = learner, wanted

    def round_at(self, steps: int) -> int:
        """Rounds that are due once so many recorded steps were learnt from: the first cloning, and
        what follows each round, take equal parts."""
        rounds = self._config.rounds
        return min(rounds, steps * (rounds + 1) // self._config.steps)

    def collect(self, number: int) -> dict[str, float] | None:
        """Run a round, or what is left of it, and append it to the data; None where that was
        interrupted."""
        folder = self._run / CORRECTIONS / str(number)
        recorded = self._failures() if number == 0 and self._config.failures else {}
        # Falls from the first rate in equal parts, so that the policy goes ever further.
        rate = self._config.takeover * (1 - number / self._config.rounds)
        policy = Takeover(self._learner, self._expert(), TakeoverRule(rate=rate, recorded=recorded))
        try:
            is_new = not RunFolder.at(folder).ledger.exists()
            planned = self._planned(number, recorded)
            config = self._evaluation()
            with Run.new(config, folder, planned) if is_new else Run.open(folder) as run:
                report = run.finish(policy=policy)
        finally:
            policy.close()
        if not report.complete:
            return None
        counts = append_data(folder, self._wanted, self._run / DATA, Silent())
        succeeded = sum(one.outcome is Outcome.SUCCESS for one in report.episodes)
        return {
            "corrections/rate": rate,
            "corrections/episodes": float(len(report.episodes)),
            "corrections/success": succeeded / max(1, len(report.episodes)),
            "corrections/taught": float(counts),
        }

    def _expert(self) -> Policy:
        name = self._config.expert
        found: Policy = plugins.build("policies", name, {})
        return found

    def _evaluation(self) -> EvalConfig:
        """How a round is run and recorded."""
        config = self._config
        subject = {one.name: getattr(config, one.name) for one in fields(Subject)}
        return EvalConfig(
            **{**subject, "policy_python": None},
            episodes=config.batch_count,
            seed=config.seed,
            lanes=config.lane_count,
            max_steps=config.max_steps,
            retries=config.retries,
            step_timeout_s=config.step_timeout_s,
            record="data",
            video="none",
        )

    def _planned(self, number: int, recorded: dict[str, Array]) -> list[Trial]:
        """Starts that no evaluation has; in a round from failures, those of the failures."""
        if recorded:
            trials = open_recorded(Path(self._config.failures)).trials
            return [trial for trial in trials if trial.id in recorded]
        count = self._config.batch_count
        first = FIRST_SEED * (self._config.seed + 1) + number * count
        return [
            Trial(suite=suite, task=task, seed=first + i)
            for i, (suite, task) in enumerate(self._tasks * count)
        ][:count]

    def _failures(self) -> dict[str, Array]:
        """What was done in failed episodes of the tasks here, by trial."""
        folder = Path(self._config.failures)
        mine = [trial for trial in _failed(folder) if (trial.suite, trial.task) in self._tasks]
        if not mine:
            raise UsageError(f"--failures {str(folder)!r} has no episode of the tasks here.")
        failed = mine[: self._config.batch_count]
        steps = load_steps(folder, failed)
        names = steps["trial"].to_numpy(zero_copy_only=False)
        actions = steps["action"]
        return {
            trial.id: np.array(actions.filter(names == trial.id).to_pylist()[1:])
            for trial in failed
        }
