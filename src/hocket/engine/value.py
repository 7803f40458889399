"""What it is worth to a queue that a batch leaves now, later, or with fewer rows. No clock.

N lanes execute chunks and queue for one slot of a policy. n of them are ready; the others come
back as exponentials of mean E, the mean duration of a chunk. To serve b of n takes L(b) seconds and
serves b rows; to wait takes the time until the next lane comes. That is a semi-Markov decision
process, and policy iteration on a grid of n solves it in 1 to 2 milliseconds: rho, the rows per
second of the best rule, and h(n), what it is worth to have n lanes ready.

A decision looks closer: A(t), the lanes that come within t seconds, is what the chunks under way
say, by how long others of their kind took. For each t and each size b, to wait t seconds and then
to serve b of n = r + A(t) lasts T = t + L(b), leaves n' = n - b + A(T) - A(t) lanes ready and costs

    (1 - s) (rho T - b)  +  s (H / E - (N / E - rho) T)  +  h(n') + s n'

with H the lane-seconds spent at the policy until then. At s = 0 the time counts, at s = 1 the
waiting; both are the same but for a potential, as long as lanes come as E says. s = -h(r + 1) /
(r + 1), what a ready lane is worth, makes the cost blind to when lanes come that come anyway.

Where there are several slots, N is one slot's share of the lanes, and of those under way as many
are counted on as it lacks: the others are for the other slots, which may take them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Chosen by hand. What other values lose was read on twelve settings of
# `benchmarks/engine/scheduling_simulation.py`, one of each of most families.
STATES = 48
"""States of the grid, at most. With 24 no setting changes by more than 0.5 %."""
QUANTILES = np.array([0.1, 0.5, 0.9, 1.0])
"""Where the arrivals of a cohort are looked at, beside horizons halved: of eight cohorts a kind."""
LEAK = 1e-4
"""Chance that a state is followed by the empty one, whatever was chosen. Without it, a rule under
which some states never lead to others has no one rate, and the equations have no solution."""
LATE = 1.25
"""A lane that executes for longer than all others of its kind is expected at this many times the
longest, and no more after that. Where chunks are all alike, a lane that is a little late would be
given up otherwise, in the moment before it comes. With 1 and with 2, two signatures with two
replicas lose 6 and 3 %."""


class Value:
    """What a queue's states are worth."""

    def __init__(self, lanes: int, execute_s: float, infer_s: Floats, sizes: Iterable[int]) -> None:
        """`infer_s[b]` is the latency of b rows, `sizes` are the batches worth a look."""
        self._lanes, self._execute_s, self._busy_s = lanes, execute_s, infer_s
        self._sizes = np.array(sorted(sizes), float)
        self._grid = np.unique(np.round(np.linspace(0, lanes, min(lanes, STATES) + 1)))
        self._worth, rates = self._solve()
        self.rate, self.batches, self.busy = map(float, rates)
        """Rows a second, batches a second, and the share of the time in which one is inferred."""

    def _solve(self) -> tuple[Floats, Floats]:
        """h on the grid, and rho with what goes with it: policy iteration, the last choice being to
        wait."""
        grid, lanes, execute_s = self._grid, self._lanes, self._execute_s
        states = len(grid)
        harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, lanes + 1))])[::-1]
        served = np.minimum(grid[:, None], self._sizes)
        seconds = self._infer_s(served)
        came = (lanes - grid[:, None]) * -np.expm1(-seconds / execute_s)
        after = np.minimum(lanes, grid[:, None] - served + came)
        waits = np.append(np.diff(harmonic[grid.astype(int)]) * -execute_s, np.inf)[:, None]
        seconds = np.hstack([seconds, waits])
        served = np.hstack([served, np.zeros((states, 1))])
        after = np.hstack([after, np.append(grid[1:], lanes)[:, None]])
        seconds[0, :-1] = np.inf
        low = np.clip(np.searchsorted(grid, after, side="right") - 1, 0, states - 2)
        share = (after - grid[low]) / (grid[low + 1] - grid[low])
        is_busy = served > 0
        gains = np.stack([served, is_busy, np.where(is_busy, seconds, 0.0)], axis=-1)
        row, choice = np.arange(states), np.full(states, len(self._sizes) - 1)
        choice[0] = len(self._sizes)
        for _ in range(STATES):  # It ends by itself after two or three rounds.
            system = np.eye(states + 1)
            left, part = low[row, choice], share[row, choice]
            system[row, left] -= (1.0 - LEAK) * (1.0 - part)
            system[row, left + 1] -= (1.0 - LEAK) * part
            system[:states, states] = -seconds[row, choice]
            system[states] = np.eye(1, states + 1)[0]
            solved = np.linalg.solve(system, np.vstack([-gains[row, choice], np.zeros(3)]))
            worth, rates = solved[:states, 0], solved[states]
            cost = rates[0] * seconds - served + (1.0 - share) * worth[low] + share * worth[low + 1]
            best = cost.argmin(1)
            better = cost[row, best] < cost[row, choice] - 1e-9
            if not better.any():
                break
            choice = np.where(better, best, choice)
        return worth, rates

    def decide(
        self, ready: int, under_way: int, times: Floats, came: Floats, patience_s: float
    ) -> tuple[float, int]:
        """How many seconds to wait, and how many rows to serve then, if `came` of so many lanes
        under way are ready after `times` seconds."""
        lanes, execute_s, rate = self._lanes, self._execute_s, self.rate
        ready = min(ready, lanes)
        came = came * min(1.0, (lanes - ready) / max(1.0, under_way))
        areas = np.diff(times) * (came[1:] + came[:-1]) / 2.0
        waited = np.concatenate([[0.0], np.cumsum(areas)])
        is_near = times <= patience_s
        wait, here = times[is_near, None], came[is_near, None]
        # Only lanes that are certain to have come are counted on: with expectations rounded, long
        # chunks of a fast policy lose up to 10 %.
        served = np.minimum(self._sizes, np.floor(ready + here + 1e-6))
        until = wait + self._infer_s(served)
        left = ready - served + np.interp(until, times, came)
        holding = ready * until + np.interp(until, times, waited)
        slope = -self._worth_of(min(lanes, ready + 1)) / min(lanes, ready + 1)
        slope = min(1.0, max(0.0, float(slope)))
        cost = (1.0 - slope) * (rate * until - served) + self._worth_of(left) + slope * left
        cost += slope * (holding / execute_s - (lanes / execute_s - rate) * until)
        best = int(cost.argmin())
        if cost[0].min() <= cost.flat[best] + 1e-9:
            best = int(cost[0].argmin())
        return float(wait[best // len(self._sizes), 0]), int(served.flat[best])

    def _infer_s(self, rows: Floats) -> Floats:
        return np.interp(rows, np.arange(len(self._busy_s)), self._busy_s)

    def _worth_of(self, ready: Any) -> Any:
        return np.interp(ready, self._grid, self._worth)


def arrivals(
    groups: Iterable[tuple[list[float], list[tuple[float, int]]]], horizon_s: float
) -> tuple[Floats, Floats]:
    """Times from now, and how many lanes should have come by then. A group has the durations of
    earlier chunks, sorted, and for how long how many lanes have been executing."""
    times = [0.0, *(horizon_s / 2**power for power in range(9))]
    parts = []
    for durations, running in groups:
        took = np.array([*durations, LATE * durations[-1]])
        elapsed, lanes = np.array(running, float).T
        gone = np.searchsorted(took, elapsed, side="right")
        is_awaited = gone < len(took)
        elapsed, lanes, gone = elapsed[is_awaited], lanes[is_awaited], gone[is_awaited]
        parts.append((took, elapsed, lanes, gone))
        first = gone[:8, None] + ((len(took) - 1 - gone[:8, None]) * QUANTILES).astype(int)
        times += (took[first] - elapsed[:8, None] + 1e-9).ravel().tolist()
    grid = np.unique([at for at in times if 0.0 <= at <= horizon_s])
    came = np.zeros(len(grid))
    for took, elapsed, lanes, gone in parts:
        by_then = np.searchsorted(took, elapsed[:, None] + grid, side="right")
        came += (lanes / (len(took) - gone)) @ (by_then - gone[:, None])
    return grid, came
