"""Which episodes are trained on and which are evaluated on, and which of them belong together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.core.data import Trial
from hocket.errors import EnvError
from hocket.train.algorithms.rollout import Segment

FIRST_SEED = 10_000_000
"""Training seeds of run seed s count up from (s + 1) times this: far from evaluation's."""
EVALUATION = 1 << 20
"""Repeats from here on are evaluations: the same trials each time, told apart by number."""

Task = tuple[str, str]
"""The names of a suite and of a task in it."""


def is_evaluation(trial: Trial) -> bool:
    """Whether a trial measures rather than trains."""
    return trial.repeat >= EVALUATION


def is_training(trial: Trial) -> bool:
    """Whether a trial is learnt from."""
    return not is_evaluation(trial)


def evaluation_trials(tasks: Sequence[Task], number: int, seed: int, episodes: int) -> list[Trial]:
    """Returns the trials of evaluation `number`: the same starts every time."""
    return [
        Trial(suite=suite, task=task, seed=seed + episode, repeat=EVALUATION + number)
        for episode in range(episodes)
        for suite, task in tasks
    ]


@dataclass(slots=True)
class Curriculum:
    """An endless plan of training trials, task by task; all that it remembers is `planned`.

    A group is the same task and seed, and so the same start, `group` times; 1 means no groups.
    Ranks share the plan without overlap.
    """

    tasks: Sequence[Task]
    seed: int
    group: int = 1
    rank: int = 0
    ranks: int = 1
    planned: int = 0
    """Groups planned so far, on this rank."""

    def next_group(self) -> list[Trial]:
        """Returns the trials of the next group."""
        index = self.planned * self.ranks + self.rank
        self.planned += 1
        suite, task = self.tasks[index % len(self.tasks)]
        seed = (self.seed + 1) * FIRST_SEED + index // len(self.tasks)
        return [
            Trial(suite=suite, task=task, seed=seed, repeat=repeat) for repeat in range(self.group)
        ]


def group_of(trial: Trial) -> Hashable:
    """Returns what all trials of a group, and no others, have in common."""
    return (trial.suite, trial.task, trial.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A group whose trials have all ended, and whether it is learnt from."""

    group: Hashable
    segments: tuple[Segment, ...]
    is_kept: bool
    """Whether outcomes differ: otherwise there is nothing to learn from it."""
    size: int
    """Trials of the group, those lost to errors included."""


class Groups:
    """Collects members until groups are whole."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._members: dict[Hashable, list[Segment | None]] = {}

    @property
    def waiting(self) -> list[Segment]:
        """Members whose group is not whole yet."""
        return [m for members in self._members.values() for m in members if m is not None]

    def add(self, trial: Trial, segment: Segment | None) -> Verdict | None:
        """Takes a member that ended (None: it was lost to errors), and returns the verdict if its
        group is now whole."""
        group = group_of(trial)
        members = self._members.setdefault(group, [])
        members.append(segment)
        if len(members) < self._size:
            return None
        del self._members[group]
        whole = tuple(member for member in members if member is not None)
        for other in whole[1:]:
            _check_same_start(whole[0], other)
        outcomes = {segment.total_reward for segment in whole}
        return Verdict(group=group, segments=whole, is_kept=len(outcomes) > 1, size=len(members))


def _check_same_start(one: Segment, other: Segment) -> None:
    for key, seen in one.observation.items():
        if not np.array_equal(seen[0], other.observation[key][0]):
            raise EnvError(
                f"{one.trial.id} and {other.trial.id} are of one group but did not start alike: "
                f"{key!r} differs. GRPO needs envs whose start depends on the seed of reset alone."
            )
