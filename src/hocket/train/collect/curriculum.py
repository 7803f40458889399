"""Which trials are trained on: ever new starts, or some starts over and over, of which a curriculum
says how often each is tried.

A curriculum is a function from what became of each start to weights, one for each, 0 or more:

    def weigh(starts: Sequence[Start]) -> Sequence[float]: ...

It is asked anew after each update; between two updates weights stay, and draws depend on the run's
seed and the number of the trial alone, so that a synchronous run is the same with any lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.core.data import Array, Trial
from hocket.core.plugins import load_named
from hocket.errors import ConfigError, HocketError
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.plan import EVALUATION, Task

FIRST_SEED = 10_000_000
"""Training seeds of run seed s count up from (s + 1) times this: far from evaluation's."""
HARD = "hard"
_LEAST = 0.02
"""The least weight that `hard` gives, so that what is solved is not forgotten."""


class CurriculumError(HocketError):
    """A curriculum that raised, or returned what are no weights."""


@dataclass(slots=True, kw_only=True)
class Start:
    """What became of the episodes that began in one start."""

    suite: str
    task: str
    seed: int
    tried: int = 0
    """Episodes that ended, those lost to errors left out."""
    succeeded: int = 0
    """Those of them that are known to have succeeded."""
    total: float = 0.0
    """The sum of their rewards."""


def weigh_hard(starts: Sequence[Start]) -> list[float]:
    """Weigh a start by how open its end is, p (1 - p) for a share of successes p: what always
    succeeds, or never does, teaches nothing. Before the first episode p is a half."""
    shares = [(start.succeeded + 1.0) / (start.tried + 2.0) for start in starts]
    return [max(_LEAST, share * (1.0 - share)) for share in shares]


Weigh = Callable[[Sequence[Start]], Sequence[float]]


def find_curriculum(name: str) -> Weigh | None:
    """The curriculum of this name; None where all starts count alike."""
    if not name:
        return None
    if name == HARD:
        return weigh_hard
    if ":" not in name:
        raise ConfigError(
            f"There is no curriculum {name!r}. Known is hard; one of your own is named "
            f"package.module:function."
        )
    return load_named(name, "curriculum")


class Curriculum:
    """An endless plan of training trials. Without a pool of starts it goes task by task, and all
    that it remembers is `planned`.

    A group is the same task and seed, and so the same start, `group` times; 1 means no groups.
    Ranks share the plan without overlap; each weighs starts by what it saw itself.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        group: int = 1,
        *,
        rank: int = 0,
        ranks: int = 1,
        starts: int | None = None,
        weigh: Weigh | None = None,
    ) -> None:
        """`starts` of each task are tried over and over; None makes ever new ones."""
        self.group = group
        self.planned = 0
        """Groups planned so far, on this rank."""
        self._tasks = tasks
        self._first = (seed + 1) * FIRST_SEED
        self._rank, self._ranks = rank, ranks
        self._weigh = weigh
        self._pool = [
            Start(suite=suite, task=task, seed=self._first + index)
            for index in range(starts or 0)
            for suite, task in tasks
        ]
        self._index = {(s.suite, s.task, s.seed): s for s in self._pool}
        self._fresh: list[tuple[Trial, Stretch]] = []
        """What ended since weights were last made."""
        self._shares = self._weights()

    def next_group(self) -> list[Trial]:
        index = self.planned * self._ranks + self._rank
        self.planned += 1
        if not self._pool:
            suite, task = self._tasks[index % len(self._tasks)]
            seed, first = self._first + index // len(self._tasks), 0
        else:
            rng = np.random.default_rng([self._first, index])
            start = self._pool[int(rng.choice(len(self._pool), p=self._shares))]
            suite, task, seed = start.suite, start.task, start.seed
            # Repeats tell the trials of one start apart, below those of evaluations.
            first = index % (EVALUATION // self.group) * self.group
        return [
            Trial(suite=suite, task=task, seed=seed, repeat=first + member)
            for member in range(self.group)
        ]

    def add(self, trial: Trial, stretch: Stretch | None) -> None:
        """Take an episode that ended; None, one lost to errors, says nothing of its start."""
        if self._pool and stretch is not None:
            self._fresh.append((trial, stretch))

    def settle(self) -> None:
        """Make new weights of all that has ended; called when an update is done."""
        # In the order of the plan, since sums of rewards depend on it in their last bits.
        for trial, stretch in sorted(self._fresh, key=lambda one: one[0].repeat):
            start = self._index[trial.suite, trial.task, trial.seed]
            start.tried += 1
            start.succeeded += bool(stretch.success)
            start.total += stretch.total_reward
        self._fresh = []
        self._shares = self._weights()

    def to_curves(self) -> dict[str, float]:
        """Starts that were tried, those that never succeeded, and how many starts the weights are
        worth: all of them where they are equal."""
        if not self._pool:
            return {}
        tried = [start for start in self._pool if start.tried]
        effective = len(self._pool) if self._shares is None else 1.0 / (self._shares**2).sum()
        return {
            "starts/tried": float(len(tried)),
            "starts/never_succeeded": float(sum(not start.succeeded for start in tried)),
            "starts/effective": float(effective),
        }

    def to_state(self) -> list[list[float]]:
        return [[start.tried, start.succeeded, start.total] for start in self._pool]

    def restore(self, planned: int, state: Sequence[Sequence[float]]) -> None:
        self.planned = planned
        for start, (tried, succeeded, total) in zip(self._pool, state, strict=True):
            start.tried, start.succeeded, start.total = int(tried), int(succeeded), total
        self._shares = self._weights()

    def _weights(self) -> Array | None:
        """The share of trials that each start gets; None where all are equal."""
        if self._weigh is None or not self._pool:
            return None
        try:
            found = np.asarray(self._weigh(self._pool), np.float64)
        except Exception as exc:
            raise CurriculumError(f"The curriculum raised {type(exc).__name__}: {exc}") from exc
        is_right = found.shape == (len(self._pool),) and np.isfinite(found).all()
        if not is_right or (found < 0).any() or not found.any():
            raise CurriculumError(
                f"The curriculum must return {len(self._pool)} weights, one for each start, all "
                f"finite, none below 0 and not all 0; it returned {found.shape}: "
                f"{found.ravel()[:8]}."
            )
        shares: Array = found / found.sum()
        return shares
