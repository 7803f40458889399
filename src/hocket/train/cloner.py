"""A run that learns from recorded episodes alone: update after update, with the same log, display,
evaluations and checkpoints as a run that collects. The engine runs for evaluations only."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hocket.core.contracts.recorder import Reader
from hocket.core.events import EpisodesSealed, Event
from hocket.engine.trials import TrialQueue
from hocket.train.algorithms.cloning import STEPS
from hocket.train.collect import plan
from hocket.train.collect.plan import Crossing, Evaluations
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Updated
from hocket.train.log import Counts
from hocket.train.trainer import Parts

Roll = Callable[[Reader, TrialQueue], bool]
"""Runs trials to the last; False where that was interrupted."""


class Cloner:
    """Learns from recorded episodes, and reads the events of evaluations."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[plan.Task],
        parts: Parts,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._counts = Counts()
        self._evaluations = Evaluations(config, tasks, parts.policy, parts.description, parts.run)
        self._evaluated_at = -1
        """Steps at which this process last evaluated."""
        self._to_save = Crossing(config.checkpoint_every)
        self.is_complete = False
        if restored is not None:
            self._counts.restore(restored, parts.ranks.size)
            self._evaluations.restore(restored)
            self._to_save.last = restored["saved_at"]

    @property
    def total_steps(self) -> int:
        """Recorded steps that were learnt from."""
        return self._counts.total_steps

    @property
    def best(self) -> float | None:
        """Success (or return) of the best evaluation so far."""
        return self._evaluations.best

    def run(self, roll: Roll) -> None:
        """Learns to the end, or until Ctrl-C: the update under way ends first, so that what is
        saved is what an uninterrupted run had. A second Ctrl-C waits for nothing."""
        evaluates = self._config.eval_every > 0 and self._parts.ranks.is_first
        # An interrupted run may owe an evaluation.
        is_owed = self._counts.updates == 0 or self._evaluations.is_due(self.total_steps)
        goes_on = self._evaluate(roll) if evaluates and is_owed else True
        is_over = self._counts.updates > 0 and self._is_over()
        while goes_on and not is_over:
            with _deferred_interrupt() as is_interrupted:
                for updated in self._parts.link.news():
                    self._account(updated)
                if self._to_save.fires(self.total_steps):
                    self._parts.link.save(self.counters())
            goes_on = not is_interrupted()
            if goes_on and evaluates and self._evaluations.is_due(self.total_steps):
                goes_on = self._evaluate(roll)
            is_over = self._is_over()  # asked by all ranks alike
        if goes_on:
            self._parts.link.finish(self.counters())
            is_measured = not evaluates or self._evaluated_at == self.total_steps
            self.is_complete = is_measured or self._evaluate(roll)

    def on(self, event: Event) -> None:
        """Takes the episodes of an evaluation."""
        for episode in event.episodes if isinstance(event, EpisodesSealed) else ():
            result = self._evaluations.add(episode)
            if result is not None:
                score = result.score
                self._parts.log.write(
                    result.env_steps,
                    result.to_curves(),
                    kind="eval",
                    n=score.n,
                    errors=score.errors,
                )
                self._parts.display.announce(result.to_text())

    def close(self) -> None:
        """Closes nothing: the parts belong to whoever made them."""

    def counters(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps beside the weights."""
        return {
            **self._counts.to_state(),
            **self._evaluations.to_state(),
            "planned": 0,
            "saved_at": self._to_save.last,
            "wall_s": self._parts.log.wall_s,
        }

    def _evaluate(self, roll: Roll) -> bool:
        """Evaluates the newest weights; False where that was interrupted."""
        trials = TrialQueue()
        trials.add(self._evaluations.begin(self.total_steps))
        is_done = roll(self, trials)
        if is_done:
            self._evaluated_at = self.total_steps
        else:
            self._evaluations.give_up()
        return is_done

    def _account(self, updated: Updated) -> None:
        counts, ranks = self._counts, self._parts.ranks
        counts.updates = updated.version
        counts.env_steps += STEPS * self._config.minibatch
        counts.total_steps = int(ranks.count(counts.env_steps))
        if ranks.is_first:
            values = {
                **{f"learn/{key}": value for key, value in updated.measures.items()},
                "count/updates": float(counts.updates),
            }
            self._parts.log.write(self.total_steps, values, kind="update")
            self._parts.display.update(self.total_steps, values)

    def _is_over(self) -> bool:
        minutes, goal = self._config.minutes, self._config.stop_at
        is_late = minutes is not None and self._parts.log.wall_s > 60 * minutes
        is_good = goal is not None and self.best is not None and self.best >= goal
        steps = self.total_steps
        return steps >= self._config.steps or self._parts.ranks.count(is_late or is_good) > 0


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Lets the first Ctrl-C wait; gives whether it came. Only the main thread hears signals."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return

    def hear(*_: object) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield came.is_set
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)
