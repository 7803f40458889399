"""Evaluations measure versions of the weights on fixed trials while training goes on, and keep the
best."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hocket.core.data import Episode, Trial
from hocket.results.scores import Score
from hocket.train.collect import plan
from hocket.train.collect.counts import Crossing
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description


class Evaluation:
    """Trials under way that measure one version: the one that the first of them met."""

    def __init__(self, trials: Sequence[Trial], env_steps: int) -> None:
        self._ids = {trial.id for trial in trials}
        self.holder = holder_of(trials[0])
        self.env_steps = env_steps
        self._episodes: list[Episode] = []

    def add(self, episode: Episode) -> bool:
        """Takes an episode, and returns whether all have ended."""
        if episode.trial.id in self._ids:
            self._episodes.append(episode)
        return len(self._episodes) == len(self._ids)

    def result(self, version: int, best: float | None) -> Result:
        """Returns how the version did, against the best so far."""
        score = Score.of(self._episodes)
        measure = score.returns.value if score.rate is None else score.rate
        return Result(
            version=version,
            env_steps=self.env_steps,
            score=score,
            measure=measure,
            is_best=measure is not None and (best is None or measure > best),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one version did."""

    version: int
    env_steps: int
    score: Score
    measure: float | None
    """What versions are compared by: success, or the return where nothing can succeed."""
    is_best: bool

    def keep(
        self, run: Path, weights: Mapping[str, torch.Tensor], policy: Mapping[str, Any]
    ) -> None:
        """Keeps these weights as the run's best, ready for `hocket eval --policy RUN/best`."""
        table = {
            "version": self.version,
            "env_steps": self.env_steps,
            **self.score.to_json(),
        }
        checkpoint.write_folder(
            run / checkpoint.BEST,
            {checkpoint.WEIGHTS: weights},
            {checkpoint.POLICY: policy, "score.json": table},
        )

    def to_curves(self) -> dict[str, float | None]:
        """Returns the curves of the log."""
        score, interval = self.score, self.score.success.interval
        return {
            "eval/success": score.rate,
            "eval/success_low": None if interval is None else interval.low,
            "eval/success_high": None if interval is None else interval.high,
            "eval/return": score.returns.value,
            "eval/steps": score.steps.value,
            "eval/version": float(self.version),
        }

    def to_text(self) -> str:
        """Returns a line for people."""
        score, interval = self.score, self.score.success.interval
        text = f"evaluation at {self.env_steps:,} steps: "
        if score.rate is not None:
            text += f"{100 * score.rate:.1f} % succeed"
            if interval is not None:
                text += f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
            text += ", "
        if score.returns.value is not None:
            text += f"return {score.returns.value:.2f}, "
        return f"{text}n = {score.n}{', the best so far' if self.is_best else ''}"


class Evaluations:
    """One evaluation after another, all on the same trials."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[plan.Task],
        policy: CollectingPolicy,
        description: Description,
        run: Path,
    ) -> None:
        self._config = config
        self._tasks = list(tasks)
        self._policy = policy
        self._description = description
        self._run = run
        self._schedule = Crossing(config.eval_every)
        self._number = 0
        self._current: Evaluation | None = None
        self.best: float | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether trials of an evaluation are planned or running."""
        return self._current is not None

    def is_due(self, env_steps: int) -> bool:
        """Whether the env steps have passed the next evaluation."""
        return self._schedule.fires(env_steps)

    def begin(self, env_steps: int) -> list[Trial]:
        """Returns the trials of the next evaluation; none while lanes are busy with the last."""
        if self._current is not None:
            return []
        trials = plan.evaluation_trials(
            self._tasks, self._number, self._config.eval_seed, self._config.eval_episodes
        )
        self._number += 1
        self._current = Evaluation(trials, env_steps)
        return trials

    def give_up(self) -> None:
        """Forgets the evaluation that is under way."""
        self._current = None

    def add(self, episode: Episode) -> Result | None:
        """Takes an episode that ended, and returns the result if it was the last. The weights of
        the best result are kept."""
        current = self._current
        if current is None or not current.add(episode):
            return None
        version, weights = self._policy.held_weights(current.holder)
        result = current.result(version, self.best)
        if result.is_best:
            self.best = result.measure
            result.keep(self._run, weights, self._description.to_plain())
        self._policy.release(current.holder)
        self._current = None
        return result

    def to_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps."""
        return {
            "evaluations": self._number,
            "evaluated_at": self._schedule.last,
            "best": self.best,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self._number = state["evaluations"]
        self._schedule.last = state["evaluated_at"]
        self.best = state["best"]


def holder_of(trial: Trial) -> Hashable | None:
    """Returns what holds an evaluation's trials to one version; None for training trials."""
    return ("evaluation", trial.repeat) if plan.is_evaluation(trial) else None
