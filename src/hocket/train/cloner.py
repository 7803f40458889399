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
from hocket.train.config import TrainConfig
from hocket.train.learner.learner import Updated
from hocket.train.training_run import Parts, TrainingRun

Roll = Callable[[Reader, TrialQueue], bool]
"""Runs trials to the last; False where that was interrupted."""


class Cloner(TrainingRun):
    """Learns from recorded episodes, and reads the events of evaluations."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[plan.Task],
        parts: Parts,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, tasks, parts, restored)
        self._evaluated_at = -1
        """Steps at which this process last evaluated."""

    def run(self, roll: Roll) -> None:
        """Learn to the end, or until Ctrl-C: the update under way ends first, so that what is
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
        """Take the episodes of an evaluation."""
        for episode in event.episodes if isinstance(event, EpisodesSealed) else ():
            self._take(episode)

    def _evaluate(self, roll: Roll) -> bool:
        """Evaluate the newest weights; False where that was interrupted."""
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
        counts.env_steps += STEPS * self._config.minibatch_of(self._parts.policy.spec.chunk_length)
        counts.total_steps = int(ranks.count(counts.env_steps))
        if ranks.is_first:
            values: dict[str, float | None] = {
                **{f"learn/{key}": value for key, value in updated.measures.items()},
                "count/updates": float(counts.updates),
            }
            self._show(values)


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C wait; give whether it came. Only the main thread hears signals."""
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
