"""What it is worth to a queue that a batch leaves now, later, or with fewer rows. No clock.

N lanes execute chunks and queue for one slot of a policy. n of them are ready; the others come
back as exponentials of mean E, the mean duration of a chunk. To serve b of n takes L(b) seconds and
serves b rows; to wait takes the time until the next lane comes. That is a semi-Markov decision
process, and policy iteration on a grid of n solves it in about a millisecond: rho, the rows per
second of the best rule, and h(n), what it is worth to have n lanes ready.

A decision looks closer: A(t), the lanes that should have come within t seconds, is what the chunks
under way say, by how long others of their kind took. With r lanes ready, the k-th that comes is
counted on from the time t_k on at which A is k - 1 + c. To wait for it and then to serve b = r + k
rows, or to serve fewer at once, lasts T = t_k + L(b), leaves n' = r - b + A(T) ready and costs

    (1 - s) (rho T - b)  +  s (H / E - (N / E - rho) T)  +  h(n') + s n'

with H the lane-seconds spent at the policy until then. At s = 0 the time counts, at s = 1 the
waiting; both are the same but for a potential, as long as lanes come as E says. s = -h(r + 1) /
(r + 1), what a ready lane is worth, makes the cost blind to when lanes come that come anyway.

Where each lane that executes slows inferences down, L(b) counts those that do when it begins, and
to wait may pay though no row more is served.

Where there are several slots, N is one slot's share of the lanes, and of those under way as many
are counted on as it lacks: the others are for the other slots, which may take them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# What other values lose was read on settings of
# `benchmarks/engine/scheduling_simulation.py`.
STATES = 24
"""States of the grid, at most. With 48 no family's mean gains more than 0.1 %."""
LEAK = 1e-4
"""Chance that a state is followed by the empty one, whatever was chosen. Without it, a rule under
which some states never lead to others has no one rate, and the equations have no solution."""
COUNTED = 0.75
"""c: a lane is counted on when it should have come with this chance, about. With 0.6 few lanes
whose chunks vary much wait too long and lose 2 %; with 0.9 few lanes whose chunks are alike and
shorter than an inference are served in turns and lose 5 %."""
LATE = 1.25
"""A lane that executes for longer than all others of its kind is expected at this many times the
longest, and no more after that. Where chunks are all alike, a lane that is a little late would be
given up otherwise, in the moment before it comes. With 1.01 short runs
lose 1.3 %."""


class Coming(NamedTuple):
    """Lanes under way, by what is expected."""

    at: Floats
    """Seconds from now, sorted, from 0 on."""
    lanes: Floats
    """How many should have come by then."""
    seconds: Floats
    """The sum of the times at which those come."""


class Value:
    """What a queue's states are worth."""

    def __init__(
        self,
        lanes: int,
        execute_s: float,
        infer_s: Floats,
        sizes: Iterable[int],
        slowed: float = 0.0,
        others: float = 0.0,
    ) -> None:
        """`infer_s[b]` is the latency of b rows, the last of the largest batch; `sizes` are those
        worth a look beside it. Each lane that executes when an inference begins makes it
        longer by the share `slowed`; `others` do that belong to other slots."""
        self._slowed, self._others = slowed, others
        self._lanes, self._execute_s, self._busy_s = lanes, execute_s, infer_s
        self._sizes = np.unique(np.minimum([*sizes, np.inf], len(infer_s) - 1))
        self._grid = np.unique(np.round(np.linspace(0, lanes, min(lanes, STATES) + 1)))
        self._worth, rates = self._solve()
        self.rate, self.batches, self.busy = map(float, rates)
        """Rows a second, batches a second, and the share of the time in which one is inferred."""

    @property
    def lane_rate(self) -> float:
        """Chunks of a lane in a second, where durations are as much alike as most are."""
        top = len(self._busy_s) - 1
        alike = 1.0 / (self._execute_s + self._infer_s(np.array(top), 0.0))
        return float(np.sqrt(self.rate / self._lanes * alike))

    def _solve(self) -> tuple[Floats, Floats]:
        """h on the grid, and rho with what goes with it: policy iteration, the last choice being to
        wait."""
        grid, lanes, execute_s = self._grid, self._lanes, self._execute_s
        states = len(grid)
        harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, lanes + 1))])[::-1]
        served = np.minimum(grid[:, None], self._sizes)
        seconds = self._infer_s(served, lanes - grid[:, None])
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

    def decide(self, ready: int, coming: Coming) -> tuple[float, int]:
        """How many seconds to wait, and for how many ready lanes; or how many rows to serve now."""
        lanes, execute_s, top = self._lanes, self._execute_s, len(self._busy_s) - 1
        ready = min(ready, lanes)
        share = min(1.0, (lanes - ready) / max(1.0, coming.lanes[-1]))
        came, seconds = share * coming.lanes, share * coming.seconds
        # To serve some of those that are ready, or all, or all with those that come next.
        most = min(ready, top)
        fewer = self._sizes[self._sizes < most]
        # Lanes that come are out of the way, too, where they slow the policy down.
        room = lanes if self._slowed else top - most
        more = np.arange(1, min(int(came[-1] + 1e-6), room) + 1)
        awaited = np.concatenate([fewer, [most], most + more])
        served = np.minimum(awaited, top)
        later = np.interp(more - 1 + COUNTED, came, coming.at)
        wait = np.concatenate([np.zeros(len(fewer) + 1), later])
        until = wait + self._infer_s(served, came[-1] - np.interp(wait, coming.at, came))
        by_then = np.maximum(np.interp(until, coming.at, came), served - ready)
        left = ready - served + by_then
        holding = (ready + by_then) * until - np.interp(until, coming.at, seconds)
        next_ready = min(lanes, ready + 1)
        slope = float(np.clip(-self._worth_of(next_ready) / next_ready, 0.0, 1.0))
        cost = (1.0 - slope) * (self.rate * until - served) + self._worth_of(left) + slope * left
        cost += slope * (holding / execute_s - (lanes / execute_s - self.rate) * until)
        best = int(cost.argmin())
        return float(wait[best]), int(awaited[best])

    def _infer_s(self, rows: Floats, executing: Any) -> Any:
        """Seconds to infer so many rows where so many lanes execute."""
        alone_s = np.interp(rows, np.arange(len(self._busy_s)), self._busy_s)
        return alone_s * (1.0 + self._slowed * (executing + self._others))

    def _worth_of(self, ready: Any) -> Any:
        return np.interp(ready, self._grid, self._worth)


def arrivals(groups: Iterable[tuple[list[float], list[tuple[float, int]]]]) -> Coming:
    """When lanes under way should come. A group has the durations of earlier chunks, sorted, and
    for how long how many lanes have been executing."""
    points = [np.zeros((2, 1))]
    for durations, running in groups:
        took = np.array([*durations, LATE * durations[-1]])
        elapsed, lanes = np.array(running, float).T[:, :, None]
        left = took - elapsed
        is_ahead = left > 0.0
        weight = is_ahead * lanes / np.maximum(1, is_ahead.sum(1, keepdims=True))
        points.append(np.stack([left[is_ahead], weight[is_ahead]]))
    at, weight = np.hstack(points)
    order = np.argsort(at)
    at, weight = at[order], weight[order]
    return Coming(at, np.cumsum(weight), np.cumsum(weight * at))
