"""A run that learns from recorded episodes alone: update after update, with the same log, display,
evaluations and checkpoints as a run that collects. The engine runs for evaluations only."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hocket.core.events import EpisodesSealed, Event
from hocket.engine.trials import TrialQueue
from hocket.train.algorithms.cloning import steps_of_update
from hocket.train.learner.learner import Updated
from hocket.train.learner.process import InProcess
from hocket.train.training_run import Parts, Roll, TrainingRun


class Cloner(TrainingRun):
    """Learns from recorded episodes, and reads the events of evaluations."""

    def __init__(self, parts: Parts, restored: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts, restored)
        self._corrected: int = (restored or {}).get("corrected", 0)
        """Rounds of corrections that are learnt from."""

    def run(self, roll: Roll) -> None:
        """Learn to the end, or until Ctrl-C: the update under way ends first, so that what is saved
        is what an uninterrupted run had. A second Ctrl-C waits for nothing."""
        evaluates = self._config.eval_every > 0 and self._parts.ranks.is_first
        # An interrupted run may owe an evaluation.
        is_owed = self._counts.updates == 0 or self._evaluations.is_due(self.total_steps)
        is_measured = evaluates and is_owed
        goes_on = not is_measured or self._evaluate(roll)
        is_over = self._counts.updates > 0 and self._is_over()
        while goes_on and not is_over and self._is_corrected():
            with _deferred_interrupt() as is_interrupted:
                for updated in self._parts.link.news():
                    self._account(updated)
                if self._to_save.fires(self.total_steps):
                    self._parts.link.save(self.counters())
            goes_on = not is_interrupted()
            is_measured = goes_on and evaluates and self._evaluations.is_due(self.total_steps)
            if is_measured:
                goes_on = self._evaluate(roll)
            is_over = self._is_over()  # asked by all ranks alike
        if goes_on and is_over:
            self._parts.link.finish(self.counters())
            self.is_complete = is_measured or not evaluates or self._evaluate(roll)

    def on(self, event: Event) -> None:
        for episode in event.episodes if isinstance(event, EpisodesSealed) else ():
            self._take(episode)

    def _evaluate(self, roll: Roll) -> bool:
        """Evaluate the newest weights; False where that was interrupted."""
        if self._config.algo == "reward":
            self._judge()
            return True
        trials = TrialQueue()
        trials.add(self._evaluations.begin(self.total_steps))
        is_done = roll(self, trials)
        if not is_done:
            self._evaluations.give_up()
        return is_done

    def _judge(self) -> None:
        assert isinstance(self._parts.link, InProcess)  # what clones learns in this process
        found = self._parts.link.judge()
        curves = {f"judge/{key}": value for key, value in found.items()}
        self._parts.log.write(self.total_steps, curves, kind="judged")
        low, high = 100 * found["accuracy_low"], 100 * found["accuracy_high"]
        self._parts.display.announce(
            f"at {self.total_steps:,} steps: {100 * found['accuracy']:.1f} % of held-out episodes "
            f"are judged rightly [{low:.0f}, {high:.0f}], n = {found['n']:.0f}, Brier score "
            f"{found['brier']:.3f}"
        )

    def _is_corrected(self) -> bool:
        """Collect the corrections that are due; False where that was interrupted."""
        corrections, link = self._parts.corrections, self._parts.link
        if corrections is None:
            return True
        assert isinstance(link, InProcess)  # what clones learns in this process
        while self._corrected < corrections.round_at(self.total_steps):
            found = corrections.collect(self._corrected)
            if found is None:
                return False
            self._corrected += 1
            link.take_corrections(self._corrected)
            self._parts.log.write(self.total_steps, found, kind="round")
            self._parts.display.announce(
                f"round {self._corrected}: {found['corrections/episodes']:.0f} episodes, "
                f"{100 * found['corrections/success']:.0f} % succeed, "
                f"{found['corrections/taught']:,.0f} steps of the expert"
            )
        return True

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "corrected": self._corrected}

    def _account(self, updated: Updated) -> None:
        counts, ranks = self._counts, self._parts.ranks
        counts.updates = updated.version
        size = self._config.minibatch_of(self._parts.policy.spec.chunk_length)
        counts.env_steps += size * steps_of_update(self._config, size, ranks.size)
        counts.total_steps = int(ranks.count(counts.env_steps))
        if ranks.is_first:
            values: dict[str, float | None] = {
                **{f"learn/{key}": value for key, value in updated.measures.items()},
                "count/updates": float(counts.updates),
            }
            self._show(values)


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C wait, and tell whether it came. Only the main thread hears signals."""
    came = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if before is signal.SIG_IGN or not is_main:
        yield came.is_set
        return

    def hear(*_: object) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    signal.signal(signal.SIGINT, hear)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)
