"""Says whether rows that share a step are inferred in one batch, or part.

Where an inference of all takes no longer than one of half, rows that stay in step lose only what
they wait for each other's ends; rows that part wait for the ends of each other's steps instead
(`hocket.workers.rows.stepping.Rhythm` weighs one against the other).
"""

from __future__ import annotations

from math import ceil

from hocket.engine.scheduling.model import NEAR_BEST, ChunkWork, LatencyOf, cycle_s, target_batch
from hocket.workers.median import RunningMedian
from hocket.workers.rows.stepping import WINDOW, Rhythm


class Lockstep:
    """Counts chunks and ends of episodes, and answers."""

    def __init__(self, max_batch: int) -> None:
        self.step_s: float | None = None
        """Seconds of the step that all lanes share; 0 before the first, None without one."""
        self._max_batch = max_batch
        self._chunks = self._ends = 0
        self._spread = RunningMedian(WINDOW)
        self._are_together = False

    def sent(self, chunks: int) -> None:
        """Count `chunks` chunks that were sent."""
        self._chunks += chunks

    def ended(self) -> None:
        """Count a chunk in which an episode ended."""
        self._ends += 1

    def inferred(self, off_s: float) -> None:
        """Learn that an inference took `off_s` seconds more or less than was expected."""
        self._spread.add(abs(off_s))

    def pays(self, lanes: int, execute_s: float | None, infer_s: LatencyOf) -> bool:
        """True if one batch of all lanes costs them less than several; `execute_s` is how long a
        chunk takes, None while nothing is known but what inferences cost."""
        if self.step_s is None or not 1 < lanes <= self._max_batch:
            self._are_together = False
        elif execute_s is None or not self.step_s:
            # They begin in one batch where that takes no longer than one of half.
            first = infer_s(lanes) * NEAR_BEST <= infer_s(ceil(lanes / 2))
            self._are_together = execute_s is None and first
        else:
            self._are_together = self._keeps_together(lanes, execute_s, infer_s, self.step_s)
        return self._are_together

    def target(self, lanes: int, execute_s: float, infer_s: LatencyOf) -> int:
        """The rows of a batch that rows which part are best inferred in: those of one batch step
        together."""
        return target_batch(lanes, self._work(lanes, execute_s), infer_s)

    def _work(self, lanes: int, execute_s: float) -> ChunkWork:
        return ChunkWork(
            cores=lanes, execute_s=execute_s, contention=0.0, max_batch=self._max_batch
        )

    def _keeps_together(
        self, lanes: int, execute_s: float, infer_s: LatencyOf, step_s: float
    ) -> bool:
        work = self._work(lanes, execute_s)
        target = target_batch(lanes, work, infer_s)
        parted = ceil(lanes / max(2, round(lanes / target)))
        rhythm = Rhythm(
            execute_s=execute_s,
            infer_s=infer_s(parted),
            spread_s=self._spread.value or 0.0,
            step_s=step_s,
            ends=self._ends / max(1, self._chunks),
        )
        whole_s = cycle_s(lanes, lanes, work, infer_s)
        gained_s = max(0.0, NEAR_BEST * whole_s - cycle_s(parted, lanes, work, infer_s))
        return rhythm.keeps_together(are_together=self._are_together, gained_s=gained_s)
