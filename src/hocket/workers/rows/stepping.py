"""When rows that share one step take it. No clock: time is an argument, in seconds.

One step of a batched simulator costs nearly the same for one row or for all. Rows that have no
action stand still, so a step may be taken at any time, and whoever gets a chunk while it runs waits
for its end. In the model of one cycle (`engine/scheduling/model.py`) executing a chunk then costs
E(n) = T c for any number n of rows, with c seconds for a step: contention 0. What the model leaves
open is who waits for whom. With n rows that could step now, and m whose chunks are expected w
seconds from now:

    to step now    holds up the m rows until the step ends:      m (c - w)
    to hold        holds up the n rows until the m have come:    n w

The rule does what costs the rows less time in all, for each m that may be awaited. So one straggler
is held for a full batch that is about to come, and a thousand rows are never held for one.

Whether rows should be in step at all is another question, which `Rhythm` answers. An episode
that ends in mid-chunk leaves its row to wait for a batch: half a chunk on average if all rows are
in one batch, less if there are several at other times. But rows that are out of step wait for each
other's steps, at every chunk. With a share p of the chunks in which an episode ends, and L seconds
for an inference, each chunk of a row in one of g batches that alternate

    saves    p (1 - 1/g) (D^2 - L^2) / 2 D,    D = T c, if there is room for a third batch: L <= D/2
    loses    (1 - 1/g) v,    with v seconds from the end of an inference to the end of a step

so that g does not matter: rows stay together unless p (D^2 - L^2) > 2 D v, or unless inferring
fewer at once is so much faster that the cycle of the model itself is shorter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

from hocket.workers.median import RunningMedian

# `benchmarks/batched/cpu.py --simulation` shows what these constants give together.
WINDOW = 31
"""Measurements of which a median is taken."""
OVERDUE = 0.5
"""Chunks are awaited no longer once they are late by this share of a step: without it, rows would
be held for ever where an inference hangs."""
IMMINENT = 0.03
"""Chunks are never expected sooner than in this share of a step: what is late already may still
come at any moment, and is not here yet."""
STUBBORN = 1.3
"""Rows that are together, or apart, stay so until the other is better by this factor: without it,
they would part and meet again at every small change of a measurement."""
LEAST_DOUBT, DOUBT_BY_STEP, DOUBT_BY_SPREAD, MOST_DOUBT = 0.05, 0.02, 1.2, 0.5
"""How far the end of an inference may miss a boundary between steps, as a share of a step: at least
5 %, 2 % more for each step that the inference lasts, since steps vary too, and 1.2 times the usual
spread of the inference; never more than half a step, which is the mean where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """The cycle of rows that share a step: they execute a chunk and wait for the next one."""

    execute_s: float
    """Seconds to execute a whole chunk."""
    infer_s: float
    """Seconds of an inference."""
    spread_s: float = 0.0
    """Seconds by which an inference usually takes longer or shorter than `infer_s`."""
    step_s: float
    """Seconds of one step."""
    ends: float
    """Share of the chunks in which an episode ends."""

    @property
    def saved_s(self) -> float:
        """Seconds that a chunk gains on average if rows are out of step, in the limit of many
        batches; 0 where a batch in between would hold up the next."""
        if self.infer_s > self.execute_s / 2:
            return 0.0
        return self.ends * (self.execute_s - self.infer_s**2 / self.execute_s) / 2

    @property
    def lost_s(self) -> float:
        """Seconds that a chunk loses then: its row waits until a step of the others ends."""
        steps = self.infer_s / self.step_s
        doubt = LEAST_DOUBT + DOUBT_BY_STEP * steps + DOUBT_BY_SPREAD * self.spread_s / self.step_s
        doubt = min(MOST_DOUBT, doubt)
        # An inference that lasts just under a whole number of steps ends where a step does, and
        # loses little; that it does so can be known no better than the doubt.
        return max(ceil(steps - doubt) - steps, doubt) * self.step_s

    def keeps_together(self, *, are_together: bool, gained_s: float = 0.0) -> bool:
        """True if all rows should be inferred in one batch, without which a cycle is `gained_s`
        shorter."""
        stubborn = STUBBORN if are_together else 1 / STUBBORN
        return self.saved_s + gained_s < stubborn * self.lost_s


class StepRule:
    """Decides when to step, from what steps cost and which chunks are expected."""

    def __init__(self) -> None:
        self._cost = RunningMedian(WINDOW)
        self.coming: deque[tuple[float, int]] = deque()
        """When chunks are expected and for how many rows, in the order of their inferences. Without
        any nobody is held."""

    @property
    def step_s(self) -> float:
        """Seconds that a step takes; 0 before the first."""
        return self._cost.value or 0.0

    def stepped(self, seconds: float) -> None:
        self._cost.add(seconds)

    def expect(self, rows: int, at: float) -> None:
        self.coming.append((at, rows))

    def came(self, rows: int) -> None:
        """Chunks for this many rows came: those that were expected first are expected no more."""
        while rows > 0 and self.coming:
            at, count = self.coming.popleft()
            if count > rows:
                self.coming.appendleft((at, count - rows))
            rows -= count

    def hold_s(self, active: int, now: float) -> float:
        """Seconds to hold `active` rows that could step now; 0 means that they step."""
        step_s = self.step_s
        late_at = now - OVERDUE * step_s
        while self.coming and self.coming[0][0] < late_at:
            self.coming.popleft()
        held_s, coming = 0.0, 0
        for at, rows in sorted(self.coming):
            wait_s = max(at - now, IMMINENT * step_s)
            if wait_s >= step_s:
                break
            coming += rows
            if active * wait_s < coming * (step_s - wait_s):
                held_s = wait_s
        return held_s
