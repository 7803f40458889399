"""Whether rows that share a step are inferred in one batch, or part. No clock.

Where an inference of all takes no longer than one of half, rows that stay in step lose only what
they wait for each other's ends; rows that part wait for the ends of each other's steps instead
(`hocket.workers.rows.stepping.Rhythm` weighs one against the other).
"""

from __future__ import annotations

from math import ceil

from hocket.core.median import RunningMedian
from hocket.engine.model import NEAR_BEST, LatencyOf, Work, cycle_s
from hocket.workers.rows.stepping import WINDOW, Rhythm


class Company:
    """What is known of the lanes' steps and episodes; the scheduler tells it, and asks."""

    def __init__(self) -> None:
        self.step_s: float | None = None
        """What a step costs that all lanes share; 0 before the first, None where they do not."""
        self._chunks = self._ends = 0
        self._spread = RunningMedian(WINDOW)

    def sent(self, chunks: int) -> None:
        """So many chunks were sent."""
        self._chunks += chunks

    def ended(self) -> None:
        """In one of them an episode ended."""
        self._ends += 1

    def inferred(self, off_s: float) -> None:
        """An inference took so much more or less than was expected of it."""
        self._spread.add(abs(off_s))

    def begins(self, members: int, infer_s: LatencyOf) -> bool:
        """Nothing is known but what inferences cost: if all of them take no longer than half."""
        if self.step_s is None:
            return False
        return infer_s(members) * NEAR_BEST <= infer_s(ceil(members / 2))

    def stays(
        self, members: int, target: int, work: Work, infer_s: LatencyOf, *, are_together: bool
    ) -> bool:
        """Whether they had better be in one batch than in batches of `target`."""
        if not self.step_s:
            return False
        parted = ceil(members / max(2, round(members / target)))
        rhythm = Rhythm(
            execute_s=work.execute_s,
            infer_s=infer_s(parted),
            spread_s=self._spread.value or 0.0,
            step_s=self.step_s,
            ends=self._ends / max(1, self._chunks),
        )
        whole_s = cycle_s(members, members, work, infer_s)
        gained_s = max(0.0, NEAR_BEST * whole_s - cycle_s(parted, members, work, infer_s))
        return rhythm.keeps_together(are_together=are_together, gained_s=gained_s)
