"""Which episodes are run: those that are trained on, which of them belong together, and those that
measure versions of the weights on fixed trials while training goes on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import EnvError
from hocket.results import stats
from hocket.results.scores import Score
from hocket.train.algorithms.stretches import Stretch, group_of
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description

EVALUATED = "evaluated "
"""Prefix of a suite's name where it has settings for evaluations."""
EVALUATION = 1 << 20
"""Repeats from here on are evaluations: the same trials each time, told apart by number."""

Task = tuple[str, str]
"""The names of a suite and of a task in it."""


def is_evaluation(trial: Trial) -> bool:
    """True if a trial measures rather than trains."""
    return trial.repeat >= EVALUATION


def evaluated_as(trial: Trial) -> Trial | None:
    """The trial that `hocket eval` runs from the start of an evaluation's, so that both sample with
    the same noise; None for trials that train."""
    if not is_evaluation(trial):
        return None
    return trial._replace(suite=trial.suite.removeprefix(EVALUATED), repeat=0)


def evaluation_trials(tasks: Sequence[Task], number: int, seed: int, episodes: int) -> list[Trial]:
    """The trials of evaluation `number`: the same starts every time."""
    return [
        Trial(suite=suite, task=task, seed=seed + episode, repeat=EVALUATION + number)
        for episode in range(episodes)
        for suite, task in tasks
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGroup:
    """A group whose trials have all ended, and whether it is learnt from."""

    group: Hashable
    stretches: tuple[Stretch, ...]
    is_kept: bool
    """True if outcomes differ: otherwise there is nothing to learn from it."""
    size: int
    """Trials of the group, those lost to errors included."""


class Groups:
    """Collects members until groups are whole."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._members: dict[Hashable, list[Stretch | None]] = {}

    @property
    def waiting(self) -> list[Stretch]:
        """Members whose group is not whole yet."""
        return [m for members in self._members.values() for m in members if m is not None]

    def add(self, trial: Trial, stretch: Stretch | None) -> WholeGroup | None:
        """Take a member that ended (None: lost to errors); return its group if that is whole."""
        group = group_of(trial, self._size)
        members = self._members.setdefault(group, [])
        members.append(stretch)
        if len(members) < self._size:
            return None
        del self._members[group]
        whole = tuple(member for member in members if member is not None)
        for other in whole[1:]:
            _check_same_start(whole[0], other)
        outcomes = {stretch.total_reward for stretch in whole}
        return WholeGroup(
            group=group, stretches=whole, is_kept=len(outcomes) > 1, size=len(members)
        )


def _check_same_start(one: Stretch, other: Stretch) -> None:
    for key, seen in one.observation.items():
        if not np.array_equal(seen[0], other.observation[key][0]):
            raise EnvError(
                f"{one.trial.id} and {other.trial.id} are of one group but did not start alike: "
                f"{key!r} differs. GRPO needs envs whose start depends on the seed of reset alone."
            )


@dataclass(slots=True)
class Crossing:
    """Tells when a multiple of `every` has been passed, where counts jump by whole batches: once
    for a jump, however far it went. 0 never fires."""

    every: int
    last: int = 0
    """The count at which it last fired."""

    def fires(self, count: int) -> bool:
        """True if a multiple was passed since it last fired."""
        if self.every <= 0 or count // self.every <= self.last // self.every:
            return False
        self.last = count
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one version did."""

    version: int
    env_steps: int
    score: Score
    is_best: bool
    """True if no version before had more success, or return where nothing can succeed."""

    def to_curves(self) -> dict[str, float | None]:
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
    """One evaluation after another, all on the same trials. Each measures one version: the one that
    the first of its trials met. The best is kept."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[Task],
        policy: CollectingPolicy,
        description: Description,
        run: Path,
    ) -> None:
        self._config = config
        # Where evaluations have settings of their own, their envs are of suites of their own.
        self._tasks = [(EVALUATED + suite, task) for suite, task in tasks]
        if not config.eval_env_config:
            self._tasks = list(tasks)
        self._policy = policy
        self._description = description
        self._run = run
        shared = -(-config.eval_episodes // len(tasks))
        self._episodes = shared if len(tasks) == 1 else max(2, shared)
        """Trials of each task."""
        self._schedule = Crossing(config.eval_every)
        self._done_at = 0
        """Env steps of the last evaluation that was due and is done."""
        self._number = 0
        self._env_steps = 0
        self._trials: list[Trial] = []
        """Those of the evaluation that is under way."""
        self._ended: list[Episode] = []
        self.best: float | None = None

    @property
    def is_under_way(self) -> bool:
        """True if trials of an evaluation are planned or running."""
        return bool(self._trials)

    def is_due(self, env_steps: int) -> bool:
        """True if the env steps have passed the next evaluation."""
        return self._schedule.fires(env_steps)

    def begin(self, env_steps: int) -> list[Trial]:
        """Return the trials of the next evaluation; none while the last is under way."""
        if self._trials:
            return []
        self._trials = evaluation_trials(
            self._tasks, self._number, self._config.eval_seed, self._episodes
        )
        self._number += 1
        self._env_steps, self._ended = env_steps, []
        return self._trials

    def give_up(self) -> None:
        """Forget the evaluation that is under way."""
        self._trials = []

    def add(self, episode: Episode) -> Result | None:
        """Take an episode that ended; return the result if it was the last. The weights of the best
        result are kept, ready for `hocket eval --policy RUN/best`."""
        holder = holder_of(episode.trial)
        if not self._trials or holder != holder_of(self._trials[0]):
            return None
        self._ended.append(episode)
        if len(self._ended) < len(self._trials):
            return None
        version, weights = self._policy.held_weights(holder)
        score = Score.of(self._ended)
        # Unlike envs have no mean return to show, but their sum is what is trained for.
        returns = [e.total_reward for e in self._ended if e.outcome is not Outcome.ERROR]
        measure = stats.mean(returns).value if score.rate is None else score.rate
        table = {"version": version, "env_steps": self._env_steps, "measure": measure}
        is_best = measure is not None and (self.best is None or measure > self.best)
        if is_best:
            self.best = measure
            checkpoint.write_folder(
                self._run / checkpoint.BEST,
                {checkpoint.WEIGHTS: weights},
                {
                    checkpoint.POLICY: self._description.to_plain(),
                    checkpoint.SCORE: {**table, **score.to_json()},
                },
                frozen=self._run / checkpoint.FROZEN,
            )
        self._policy.release(holder)
        self._trials = []
        self._done_at = self._schedule.last
        return Result(version=version, env_steps=self._env_steps, score=score, is_best=is_best)

    def to_state(self) -> dict[str, Any]:
        """What a checkpoint keeps. An evaluation that is under way will be due again."""
        return {
            "evaluations": self._number - self.is_under_way,
            "evaluated_at": self._done_at,
            "best": self.best,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. The best weights may be newer than that."""
        self._number = state["evaluations"]
        self._schedule.last = self._done_at = state["evaluated_at"]
        file = self._run / checkpoint.BEST / checkpoint.SCORE
        kept: float | None = checkpoint.read_table(file)["measure"] if file.is_file() else None
        self.best = max((x for x in (state["best"], kept) if x is not None), default=None)


def holder_of(trial: Trial) -> Hashable | None:
    """What holds an evaluation's trials to one version; None for training trials."""
    return ("evaluation", trial.repeat) if is_evaluation(trial) else None
