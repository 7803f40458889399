"""The trainer joins engine and learner: it plans episodes, hands over what they gave, evaluates,
saves and stops.

It reads the engine's events on the engine's thread, and owns every counter of the collecting side.
Both modes are the same loop. In synchronous mode no data may be older than the weights, so
collection pauses when a batch is under way, and the learner works on this very thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hocket.core.data import Episode, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesSealed,
    Noted,
)
from hocket.engine.loop import Engine
from hocket.engine.trials import TrialQueue
from hocket.errors import EnvError
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect import plan
from hocket.train.collect.curriculum import Curriculum, find_curriculum
from hocket.train.collect.elsewhere import SiteEvent, WorkGrew
from hocket.train.collect.plan import Groups
from hocket.train.collect.trajectories import Trajectories
from hocket.train.learner.learner import Updated
from hocket.train.log import Movement, Recent, Shares
from hocket.train.training_run import Parts, Roll, TrainingRun

_ERRORS_IN_A_ROW = 50
"""Episodes in a row that may be lost to errors before the run ends with one: an env that never
works would otherwise be tried for ever."""
_PATIENCE = 4
"""Batches of episodes in groups without a difference, before such groups are taken after all:
otherwise a policy that always succeeds would never get to the end of its run."""


class _Trials(TrialQueue):
    """What the engine runs for a trainer, which is heard in each turn of the engine. It stays open
    where sites collect: then the engine runs evaluations, and goes on without a trial."""

    def __init__(self, turn: Callable[[], None], *, is_open: bool) -> None:
        super().__init__()
        self._turn = turn
        self._is_open = is_open

    def refresh(self) -> None:
        self._turn()

    @property
    def is_open(self) -> bool:
        return self._is_open


class Trainer(TrainingRun):
    """Reads the engine's events; `trials` is the queue that the engine works on."""

    def __init__(self, parts: Parts, restored: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts, restored)
        config, tasks = parts.config, parts.tasks
        self._link = parts.link
        self.trials = _Trials(self._turn, is_open=parts.sites is not None)
        self._stop: Callable[[], None] = lambda: None
        """Ends the engine's run."""
        self._limit = (config.staleness + 1) * config.batch_count
        """Episodes that may be begun and not yet learnt from."""
        group = config.group if config.algo == "grpo" else 1
        ranks = parts.ranks
        self._curriculum = Curriculum(
            tasks,
            config.seed,
            group,
            rank=ranks.rank,
            ranks=ranks.size,
            starts=config.start_count,
            weigh=find_curriculum(config.curriculum),
        )
        self._groups = Groups(config.group) if config.algo == "grpo" else None
        self._sites = parts.sites
        self._trajectories = parts.sites or Trajectories(
            config,
            [task for _, task in tasks],
            newest=lambda: parts.link.block.version,
            rewards=parts.rewards,
            texts=parts.policy.texts,
        )
        self._recent = Recent()
        self._shares = Shares()
        self._movement = Movement()
        self._is_finishing = False
        if restored is not None:
            self._curriculum.restore(restored["planned"], restored["starts"])

    def run(self, roll: Roll) -> None:
        """Train to the end, or until Ctrl-C."""
        roll(self, self.trials, self._begin)

    # -- reader ----------------------------------------------------------------------------------

    def on(self, event: SiteEvent) -> None:
        if self._is_finishing:
            # Learning is over: what episodes in flight would still give is not learnt from.
            for episode in event.episodes if isinstance(event, EpisodesSealed) else ():
                if plan.is_evaluation(episode.trial):
                    self._sealed(episode)
            return
        for stretch in self._trajectories.on(event):
            self._link.put([stretch])
        if isinstance(event, ChunksExecuted):
            self._counts.env_steps += sum(
                steps
                for steps, trial in zip(event.steps, event.trials, strict=True)
                if not plan.is_evaluation(trial)
            )
            self._shares.stepping += sum(event.busy)
        elif isinstance(event, BatchInferred):
            self._shares.inferring += event.ended - event.began
        elif isinstance(event, AttemptsBegan):
            self._counts.begun += sum(
                not (plan.is_evaluation(trial) or attempt)
                for trial, attempt in zip(event.trials, event.attempts, strict=True)
            )
        elif isinstance(event, EpisodesSealed):
            for episode in event.episodes:
                self._sealed(episode)
        elif isinstance(event, AttemptFailed):
            self._counts.lost += 1
        elif isinstance(event, WorkGrew):
            self._counts.env_steps += event.steps
            self._shares.stepping += event.worked_s
            self._shares.inferring += event.inferred_s
        elif isinstance(event, Noted) and self._sites is not None:
            self._parts.display.announce(event.text)

    def behind(self) -> bool:
        """True if no new episode may begin, since what there is must be learnt from first."""
        return not self._is_finishing and self._counts.outstanding > self._limit

    def _begin(self, engine: Engine) -> bool:
        """Plan the first episodes, and an evaluation of the start, or the one that an interrupted
        run owes. A run that was at its end is only evaluated: False if not even that is left."""
        self._stop = engine.stop
        if self._counts.updates == 0:
            is_due = self._config.eval_every > 0
        elif self._is_over():
            self._finish()
            return not self.is_complete
        else:
            is_due = self._evaluations.is_due(self.total_steps)
        if is_due and self._parts.ranks.is_first:
            self._evaluate()
        self._top_up()
        return True

    # -- episodes --------------------------------------------------------------------------------

    def _sealed(self, episode: Episode) -> None:
        if plan.is_evaluation(episode.trial):
            if self._take(episode) and self._is_finishing:
                self._complete()
            return
        counts = self._counts
        counts.episodes += 1
        counts.sealed += 1
        stretch, terms = self._trajectories.seal(episode), self._trajectories.terms(episode)
        if stretch is not None:
            self._recent.add(stretch, terms)
        self._curriculum.add(episode.trial, stretch)
        if self._groups is not None:
            self._member(self._groups, episode.trial, stretch)
        elif stretch is not None:
            self._link.put([stretch])
        else:
            counts.settled += 1
        counts.errors_in_a_row = counts.errors_in_a_row + 1 if stretch is None else 0
        if counts.errors_in_a_row > _ERRORS_IN_A_ROW:
            raise EnvError(
                f"{counts.errors_in_a_row} episodes in a row were lost to errors: "
                f"{episode.error or 'the simulator diverged'}"
            )

    def _member(self, groups: Groups, trial: Trial, stretch: Stretch | None) -> None:
        whole = groups.add(trial, stretch)
        if whole is None:
            return
        self._parts.policy.release(whole.group)
        counts = self._counts
        # Where hardly any group is mixed any more, updates of nothing keep the run going.
        is_stuck = counts.filtered_since_update >= _PATIENCE * self._config.batch_count
        if whole.is_kept or (is_stuck and whole.stretches):
            self._link.put(whole.stretches)
            counts.settled += whole.size - len(whole.stretches)
        else:
            counts.filtered += 1
            counts.filtered_since_update += whole.size
            counts.settled += whole.size

    def _top_up(self) -> None:
        """Plan what may begin, and always something while the engine would otherwise end."""
        if self._is_finishing:
            return
        counts = self._counts
        while (
            counts.outstanding + self._curriculum.group <= self._limit
            and counts.waiting < self._lanes
        ):
            self._plan_group()
        if self._sites is not None:
            return  # The engine here goes on without a trial.
        idle = not len(self.trials) and counts.begun == counts.sealed
        if idle and not self._evaluations.is_under_way:
            # Held back by `behind` until the learner has settled enough.
            self._plan_group()

    def _plan_group(self) -> None:
        group = self._curriculum.next_group()
        self._counts.planned += len(group)
        (self._sites or self.trials).add(group)

    @property
    def _lanes(self) -> int:
        return self._config.lane_count if self._sites is None else self._sites.lanes

    # -- learner ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Hear the sites, tell the learner what it must know, follow its updates, plan."""
        for event in self._sites.news() if self._sites is not None else ():
            self.on(event)
        if self._is_finishing:
            return
        floor = self._trajectories.floor
        if self._groups is not None:
            floor = min([floor, *(member.oldest for member in self._groups.waiting)])
        self._link.tell(floor=floor, fraction=self.total_steps / self._config.steps)
        for updated in self._link.news():
            self._updated(updated)
        self._shares.count(is_collecting=self._trajectories.in_flight > 0)
        self._top_up()

    def _updated(self, updated: Updated) -> None:
        if self._sites is not None:
            self._sites.publish()
        self._account(updated)
        steps = self.total_steps
        if self._is_over():
            self._finish()
            return
        # An evaluation under way belongs to a version that a checkpoint of this one would not hold.
        if not self._evaluations.is_under_way and self._to_save.fires(steps):
            self._link.save(self.counters())
        if self._parts.ranks.is_first and self._evaluations.is_due(steps):
            self._evaluate()

    def _account(self, updated: Updated) -> None:
        counts = self._counts
        counts.updates = updated.version
        counts.filtered_since_update = 0
        counts.settled += updated.episodes + updated.dropped
        counts.dropped += updated.dropped
        counts.total_steps = int(self._parts.ranks.count(counts.env_steps))
        self._curriculum.settle()
        self._shares.learning += updated.learn_s
        if self._parts.ranks.is_first:
            self._report(updated)

    def _finish(self) -> None:
        if self._is_finishing:
            return
        self._is_finishing = True
        if self._sites is not None:
            self._sites.end()
        for late in self._link.finish(self.counters()):
            self._account(late)
        if self._parts.ranks.is_first and self._config.eval_every:
            self._evaluations.give_up()
            self._evaluate()
        else:
            self._complete()

    def _complete(self) -> None:
        self.is_complete = True
        self._stop()

    def _evaluate(self) -> None:
        self.trials.add(self._evaluations.begin(self.total_steps))

    # -- numbers ---------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """What a checkpoint keeps. Groups that were planned and not begun are planned again."""
        waiting = self._counts.waiting // self._curriculum.group
        return {
            **super().counters(),
            "planned": self._curriculum.planned - waiting,
            "starts": self._curriculum.to_state(),
        }

    def _report(self, updated: Updated) -> None:
        values: dict[str, float | None] = {
            **self._recent.to_curves(),
            **{f"learn/{key}": value for key, value in updated.measures.items()},
            "learn/max_staleness": float(updated.staleness),
            **self._shares.take(max(1, self._lanes)),
            **self._counts.to_curves(),
            **self._curriculum.to_curves(),
        }
        self._show(values)
        warning = self._movement.add(values.get("learn/kl"), values["train/success"])
        if warning is not None:
            self._parts.log.write(self.total_steps, {}, kind="warning", text=warning)
            self._parts.display.announce(f"Warning: {warning}")
