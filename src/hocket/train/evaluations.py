"""Measuring one version of the weights on fixed trials, while training goes on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hocket.data import Episode, Trial
from hocket.scores import Score
from hocket.train import checkpoint, plan
from hocket.train.log import Log


class Evaluation:
    """Trials under way that measure one version: the one that the first of them met."""

    def __init__(self, trials: Sequence[Trial], env_steps: int) -> None:
        self._ids = {trial.id for trial in trials}
        self.holder = holder_of(trials[0])
        self.env_steps = env_steps
        self._episodes: list[Episode] = []

    def add(self, episode: Episode) -> bool:
        """One ended; true when all have."""
        if episode.trial.id in self._ids:
            self._episodes.append(episode)
        return len(self._episodes) == len(self._ids)

    def result(self, version: int) -> Result:
        """What came of it."""
        return Result(version=version, env_steps=self.env_steps, score=Score.of(self._episodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one version did."""

    version: int
    env_steps: int
    score: Score

    @property
    def measure(self) -> float | None:
        """What versions are compared by: success, or the return where nothing can succeed."""
        return self.score.returns.value if self.score.rate is None else self.score.rate

    def is_better_than(self, best: float | None) -> bool:
        """Whether this beats the best so far."""
        return self.measure is not None and (best is None or self.measure > best)

    def mark_best(
        self, run: Path, weights: Mapping[str, torch.Tensor], policy: Mapping[str, Any]
    ) -> None:
        """Keep these weights as the run's best, ready for `hocket eval --policy RUN/best`."""
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

    def write(self, log: Log, *, is_best: bool) -> None:
        """Into the log, and as a line for people."""
        score, interval = self.score, self.score.success.interval
        values = {
            "eval/success": score.rate,
            "eval/success_low": None if interval is None else interval.low,
            "eval/success_high": None if interval is None else interval.high,
            "eval/return": score.returns.value,
            "eval/steps": score.steps.value,
            "eval/version": float(self.version),
        }
        log.write(self.env_steps, values, kind="eval", n=score.n, errors=score.errors)
        text = f"evaluation at {self.env_steps:,} steps: "
        if score.rate is not None:
            text += f"{100 * score.rate:.1f} % succeed"
            if interval is not None:
                text += f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
            text += ", "
        if score.returns.value is not None:
            text += f"return {score.returns.value:.2f}, "
        log.say(f"{text}n = {score.n}{', the best so far' if is_best else ''}", always=True)


def holder_of(trial: Trial) -> Hashable | None:
    """What holds an evaluation's trials to one version; None for training trials."""
    return ("evaluation", trial.repeat) if plan.is_evaluation(trial) else None
