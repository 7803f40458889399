"""Joins engine and learner: plans episodes, hands over what they gave, evaluates, saves, stops.

A reader of the engine's events, on its thread; it owns every counter of the collecting side. Both
modes are the same loop. In synchronous mode no data may be older than the weights, so collection
pauses when a batch is under way, and the learner works on this very thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.data import Episode, Trial
from hocket.errors import EnvError
from hocket.events import (
    AttemptFailed,
    AttemptsBegan,
    ChunksExecuted,
    EpisodesSealed,
    Event,
)
from hocket.train import plan
from hocket.train.assemble import Assembler, AssemblyConfig
from hocket.train.collecting import CollectingPolicy
from hocket.train.config import TrainConfig
from hocket.train.evaluations import Evaluation
from hocket.train.learner import Updated
from hocket.train.links import LearnerLink
from hocket.train.log import Log
from hocket.train.networks import Description
from hocket.train.plan import Curriculum, Groups
from hocket.train.ranks import Ranks
from hocket.train.schedule import Crossing
from hocket.train.segments import Segment
from hocket.train.shares import Shares
from hocket.trials import TrialQueue

_RECENT = 100
_ERRORS_IN_A_ROW = 50
_PATIENCE = 4
"""Batches of episodes in groups without a difference, before such groups are taken after all."""


class Trainer:
    """A reader of the engine; `trials` is the queue that the engine works on."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[plan.Task],
        *,
        run: Path,
        policy: CollectingPolicy,
        description: Description,
        link: LearnerLink,
        log: Log,
        ranks: Ranks,
        restored: dict[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._tasks = list(tasks)
        self._run = run
        self._policy = policy
        self._description = description
        self._link = link
        self._log = log
        self._ranks = ranks
        self.trials = TrialQueue()
        self.stop: Callable[[], None] = lambda: None
        """Ends the engine's run; set by whoever makes the engine."""

        self._curriculum = _curriculum(config, self._tasks, ranks)
        self._groups = Groups(config.group) if config.algo == "grpo" else None
        self._assembler = _assembler(config, self._tasks, link)
        self.env_steps = 0
        self.total_steps = 0
        """Over all ranks, at the last update."""
        self._episodes = 0
        self._updates = 0
        self._dropped = 0
        self._filtered = 0
        self._filtered_since_update = 0
        self._lost = 0
        self._errors = 0
        self._planned = 0
        self._begun = 0
        self._sealed_trials = 0
        self._settled = 0
        self._recent: list[Segment] = []
        self._evaluation: Evaluation | None = None
        self._evaluations = 0
        self.best: float | None = None
        self._to_evaluate = Crossing(config.eval_every)
        self._to_save = Crossing(config.checkpoint_every)
        self._is_finishing = False
        self.is_complete = False
        self._shares = Shares()
        if restored is not None:
            self._restore(restored)

    # -- reader ----------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """Reader: follow one event."""
        if self._is_finishing:
            self._follow_evaluation(event)
            return
        for segment in self._assembler.on(event):
            self._link.put([segment])
        if isinstance(event, ChunksExecuted):
            self.env_steps += sum(
                steps
                for steps, trial in zip(event.steps, event.trials, strict=True)
                if plan.is_training(trial)
            )
        elif isinstance(event, AttemptsBegan):
            self._begun += sum(
                plan.is_training(trial) and not attempt
                for trial, attempt in zip(event.trials, event.attempts, strict=True)
            )
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._sealed(episode)
        elif isinstance(event, AttemptFailed):
            self._lost += 1
        self._turn()

    def _follow_evaluation(self, event: Event) -> None:
        """Learning is over: what episodes in flight would still give is not learnt from."""
        if isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                if plan.is_evaluation(episode.trial):
                    self._sealed(episode)

    def behind(self) -> bool:
        """Durable: whether no new episode may begin, since what there is must be learnt first."""
        self._turn()
        return not self._is_finishing and self._planned - self._settled > self._limit

    def close(self) -> None:
        """Reader: nothing of its own to close."""

    def begin(self) -> None:
        """Plan the first episodes, and measure the start."""
        if self._config.eval_every and self._updates == 0:
            self._evaluate()
        self._top_up()

    # -- episodes --------------------------------------------------------------------------------

    def _sealed(self, episode: Episode) -> None:
        if plan.is_evaluation(episode.trial):
            if self._evaluation is not None and self._evaluation.add(episode):
                self._evaluated(self._evaluation)
            return
        self._episodes += 1
        self._sealed_trials += 1
        segment = self._assembler.seal(episode)
        if segment is not None:
            self._recent = [*self._recent[1 - _RECENT :], segment]
        if self._groups is not None:
            self._member(episode.trial, segment)
        elif segment is not None:
            self._link.put([segment])
        else:
            self._settled += 1
        self._errors = self._errors + 1 if segment is None else 0
        if self._errors > _ERRORS_IN_A_ROW:
            raise EnvError(f"{self._errors} episodes in a row were lost to errors: {episode.error}")

    def _member(self, trial: Trial, segment: Segment | None) -> None:
        assert self._groups is not None
        verdict = self._groups.add(trial, segment)
        if verdict is None:
            return
        self._policy.release(verdict.group)
        # Where hardly any group is mixed any more, updates of nothing keep the run going.
        is_stuck = self._filtered_since_update >= _PATIENCE * self._config.batch
        if verdict.is_kept or (is_stuck and verdict.segments):
            self._link.put(verdict.segments)
            self._settled += verdict.size - len(verdict.segments)
        else:
            self._filtered += 1
            self._filtered_since_update += verdict.size
            self._settled += verdict.size

    @property
    def _limit(self) -> int:
        return (self._config.staleness + 1) * self._config.batch

    def _top_up(self) -> None:
        """Plan what may be begun, and always something while the engine would otherwise end."""
        if self._is_finishing:
            return
        while (
            self._planned - self._settled + self._curriculum.group <= self._limit
            and self._planned - self._begun < self._config.lanes
        ):
            self._plan_group()
        idle = not len(self.trials) and self._begun == self._sealed_trials
        if idle and self._evaluation is None:
            # Held back by `behind` until the learner has settled enough.
            self._plan_group()

    def _plan_group(self) -> None:
        group = self._curriculum.next_group()
        self._planned += len(group)
        self.trials.add(group)

    # -- learner ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Hear the learner, tell it what it must know, and keep the lanes busy."""
        if self._is_finishing:
            return
        floor = self._assembler.floor
        if self._groups is not None:
            floor = min([floor, *(member.oldest for member in self._groups.waiting)])
        self._link.tell(floor=floor, fraction=self.total_steps / self._config.steps)
        for updated in self._link.news():
            self._updated(updated)
        self._shares.count(is_collecting=self._assembler.in_flight > 0)
        self._top_up()

    def _updated(self, updated: Updated) -> None:
        self._updates = updated.version
        self._filtered_since_update = 0
        self._settled += updated.episodes + updated.dropped
        self._dropped += updated.dropped
        self.total_steps = steps = int(self._ranks.count(self.env_steps))
        self._shares.learnt(updated.learn_s)
        self._report(updated, steps)
        if self._is_over(steps):
            self._finish()
            return
        if self._to_save.fires(steps):
            self._link.save(self.counters())
        if self._ranks.is_first and self._to_evaluate.fires(steps):
            self._evaluate()

    def _is_over(self, steps: int) -> bool:
        minutes = self._config.minutes
        is_late = minutes is not None and self._log.wall_s > 60 * minutes
        goal = self._config.stop_at
        is_good = goal is not None and self.best is not None and self.best >= goal
        return steps >= self._config.steps or self._ranks.count(is_late or is_good) > 0

    def _finish(self) -> None:
        if self._is_finishing:
            return
        self._is_finishing = True
        for late in self._link.finish(self.counters()):
            self._updates = late.version
        if self._ranks.is_first and self._config.eval_every:
            self._evaluation = None
            self._evaluate()
        else:
            self._complete()

    def _complete(self) -> None:
        self.is_complete = True
        self.stop()

    # -- evaluation ------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        if self._evaluation is not None:
            # The last one is still under way: lanes are few, or episodes long.
            return
        config = self._config
        trials = plan.evaluation_trials(
            self._tasks, self._evaluations, config.eval_seed, config.eval_episodes
        )
        self._evaluations += 1
        self._evaluation = Evaluation(trials, self.total_steps)
        self.trials.add(trials)

    def _evaluated(self, evaluation: Evaluation) -> None:
        version, weights = self._policy.held_weights(evaluation.holder)
        result = evaluation.result(version)
        is_best = result.is_better_than(self.best)
        if is_best:
            self.best = result.measure
            result.mark_best(self._run, weights, self._description.to_plain())
        result.write(self._log, is_best=is_best)
        self._policy.release(evaluation.holder)
        self._evaluation = None
        if self._is_finishing:
            self._complete()

    # -- numbers ---------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """What a checkpoint must remember of the collecting side. Groups that were planned and not
        begun are planned again."""
        waiting = (self._planned - self._begun) // self._curriculum.group
        return {
            "env_steps": self.total_steps,
            "episodes": self._episodes,
            "dropped": self._dropped,
            "filtered": self._filtered,
            "lost": self._lost,
            "planned": self._curriculum.planned - waiting,
            "evaluations": self._evaluations,
            "evaluated_at": self._to_evaluate.last,
            "saved_at": self._to_save.last,
            "best": self.best,
            "wall_s": self._log.wall_s,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.total_steps = state["env_steps"]
        self.env_steps = self.total_steps // self._ranks.size
        self._episodes = state["episodes"]
        self._dropped = state["dropped"]
        self._filtered = state["filtered"]
        self._lost = state["lost"]
        self._curriculum.planned = state["planned"]
        self._evaluations = state["evaluations"]
        self._to_evaluate.last = state["evaluated_at"]
        self._to_save.last = state["saved_at"]
        self.best = state["best"]
        self._updates = state["version"]

    def _report(self, updated: Updated, steps: int) -> None:
        judged = [s.success for s in self._recent if s.success is not None]
        shares = self._shares.take()
        values: dict[str, float | None] = {
            "train/success": sum(judged) / len(judged) if judged else None,
            "train/return": _mean([s.total_reward for s in self._recent]),
            "train/episode_steps": _mean([float(s.steps) for s in self._recent]),
            **{f"learn/{key}": value for key, value in updated.measures.items()},
            "learn/max_staleness": float(updated.staleness),
            "time/collecting": shares[0],
            "time/learning": shares[1],
            "count/updates": float(updated.version),
            "count/episodes": float(self._episodes),
            "count/dropped": float(self._dropped),
            "count/filtered_groups": float(self._filtered),
            "count/lost_attempts": float(self._lost),
        }
        if not self._ranks.is_first:
            return
        self._log.write(steps, values, kind="update")
        success = values["train/success"]
        self._log.say(
            f"{steps:,}/{self._config.steps:,} steps, update {updated.version}: "
            + ("" if success is None else f"success {100 * success:.0f} %, ")
            + f"reward {values['train/return'] or 0.0:.2f}, "
            f"entropy {updated.measures['entropy']:.2f}, kl {updated.measures['kl']:.4f}, "
            f"clipped {100 * updated.measures['clip_share']:.0f} %, "
            f"stale {updated.measures['staleness']:.1f}, "
            f"collecting {100 * shares[0]:.0f} %, learning {100 * shares[1]:.0f} %"
        )


def _curriculum(config: TrainConfig, tasks: Sequence[plan.Task], ranks: Ranks) -> Curriculum:
    group = config.group if config.algo == "grpo" else 1
    return Curriculum(tasks, config.seed, group=group, rank=ranks.rank, ranks=ranks.size)


def _assembler(config: TrainConfig, tasks: Sequence[plan.Task], link: LearnerLink) -> Assembler:
    settings = AssemblyConfig(
        tasks=tuple(task for _, task in tasks),
        reward=config.reward,
        segment_chunks=config.segment_chunks,
        # GRPO compares whole episodes: the learner waits for slow ones instead.
        max_staleness=0 if config.algo == "grpo" else config.staleness,
    )
    return Assembler(settings, is_training=plan.is_training, newest=lambda: link.block.version)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
