"""What throughput to expect of lanes, cores and a policy.

S is the time to execute a chunk alone, C the number of cores, L(B) the time to infer a batch, K the
inferences that run at once. While n lanes execute, a chunk takes

    E(n) = S max(1, n / C) ** contention

`contention` is 1 where chunks compute all the time and 0 where they do not compete for cores: they
sleep, or wait for a device. Lanes whose chunks all take equally long go in step. N of them in
batches of B form g = ceil(N / B) cohorts; while one is inferred the others execute:

    cycle(B) = E(N) + L(N)                               if g = 1
             = max(g L(B) / K, E(B) + L(B), E(N))        if g > 1

(For what to expect, g = N / B: lanes change their batches where that is faster.)

Lanes whose chunks vary as much as they can come back as exponentials: what rate the best rule
reaches then is what the scheduler goes by (see `value.py`). `hocket plan` and `--lanes
auto` go by both, for most chunks are in between: by the geometric mean of the two rates. Rows that
share a step go by the cycle alone. With a delay of d of a chunk's s steps, lanes execute a share h
= d / s of it while the policy works, so that E + L becomes max(L, h E) + (1 - h) E. Nothing here
keeps time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, sqrt

import numpy as np

from hocket.engine.scheduling.value import Value

LatencyOf = Callable[[int], float]
"""Seconds to infer a batch, by its rows."""

NEAR_BEST = 0.98
"""A smaller batch within 2 % of the best throughput is preferred: it answers sooner. With
10 % the settings of `scheduling_simulation.py` lose up to 6 %, with none 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """What the cores and the policy have to do for one chunk."""

    cores: int
    execute_s: float
    """Seconds to execute one chunk with its observations, alone on the machine."""
    concurrency: float = 1
    """Inferences at once. A fraction is the share of a policy that others use too."""
    contention: float = 1.0
    """0: chunks do not compete for cores; 1: they compute all the time."""
    max_batch: int = 64
    overlap: float = 0.0
    """The share of a chunk that lanes execute while the policy works on the next one, 0 to 1."""
    slowed: float = 0.0
    """The share by which each lane that executes makes an inference longer: where it renders on the
    policy's GPU."""

    def executing_s(self, lanes: float) -> float:
        """Seconds to execute a chunk while `lanes` of them execute."""
        return float(self.execute_s * max(1.0, lanes / self.cores) ** self.contention)

    def turn_s(self, lanes: float, infer_s: float) -> float:
        """Seconds from one answer to the next of a lane that waits for nobody else."""
        execute_s = self.executing_s(lanes)
        beside_s = self.overlap * execute_s
        return execute_s - beside_s + max(infer_s, beside_s)


def cycle_s(
    batch: int, lanes: int, work: ChunkWork, latency: LatencyOf, *, is_whole: bool = True
) -> float:
    """Seconds in which each of `lanes` lanes executes one chunk, in batches of `batch`: in whole
    cohorts, or in batches whose lanes change."""
    cohorts = ceil(lanes / batch) if is_whole else lanes / batch
    infer_s = latency(min(batch, lanes))
    if work.slowed and cohorts > 1:
        # Of the other cohorts' lanes those execute that do not wait for the policy.
        busy = min(1.0, work.executing_s(lanes) * work.concurrency / max(1e-9, cohorts * infer_s))
        infer_s *= 1.0 + work.slowed * busy * (lanes - batch)
    if cohorts <= 1:
        return max(work.turn_s(lanes, infer_s), infer_s / work.concurrency)
    return max(
        cohorts * infer_s / work.concurrency,
        work.turn_s(batch, infer_s),
        work.executing_s(lanes),
    )


def target_batch(lanes: int, work: ChunkWork, latency: LatencyOf) -> int:
    """The batch that gives the most chunks per second; the smallest of those within 2 %."""
    if lanes <= 1:
        return 1
    best, best_cycle_s = 1, inf
    for batch in cohort_sizes(lanes, work.max_batch):
        # From large to small: a smaller batch wins ties, and all within 2 % are ties.
        seconds = cycle_s(batch, lanes, work, latency)
        if seconds * NEAR_BEST <= best_cycle_s:
            best = batch
        best_cycle_s = min(best_cycle_s, seconds)
    return best


def cohort_sizes(lanes: int, max_batch: int) -> list[int]:
    """The batches worth a look, largest first: the smallest that makes each number of cohorts."""
    sizes: list[int] = []
    batch = min(lanes, max_batch)
    while batch >= 1:
        batch = ceil(lanes / ceil(lanes / batch))
        sizes.append(batch)
        batch -= 1
    return sizes


WORTH_TIMING = 0.05
"""A size is timed where the batch before the next known one may be faster than expected by this
share. With 0.2 settings of `scheduling_simulation.py` lose 1.3 % at worst."""
ALIKE = 0.2
"""Slopes that differ by less than this share belong to one line: a slope between
two sizes that are close is off by as much as timings are."""


def size_to_time(timed: Mapping[int, float], declared: Sequence[int] = ()) -> int | None:
    """Return the batch size to time next, where powers of two and the largest are known; None where
    no further size may change a decision. `timed`: seconds by rows.

    Those that a policy pads to come first, and are all where it says so. Otherwise stairs and knees
    are looked for: between two sizes a and b the latency may stay low up to b - 1 rows. Where that
    would be the most rows a second of all it is tried first: a policy is asked for little else.
    Next to a power of two one row more tells whether a stair begins. Elsewhere a gap that goes on
    as one beside it does, which is as wide at least, holds none, and any other is halved.
    """
    sizes = sorted(timed)
    if declared:
        return max({size for size in declared if size < sizes[-1]}.difference(sizes), default=None)
    gaps = list(pairwise(sizes))
    slopes = [(timed[b] - timed[a]) / (b - a) for a, b in gaps]
    least = max(0.0, min(slopes, default=0.0))
    best_rate = max(size / max(1e-9, timed[size]) for size in sizes)
    most, found = (0.0, WORTH_TIMING), None
    for index, ((a, b), slope) in enumerate(zip(gaps, slopes, strict=True)):
        beside = [
            slopes[i]
            for i in (index - 1, index + 1)
            if 0 <= i < len(gaps) and gaps[i][1] - gaps[i][0] >= b - a
        ]
        is_untried = a & (a - 1) == 0 and (b == 2 * a or b == sizes[-1])
        if not is_untried and any(abs(other - slope) < ALIKE * slope for other in beside):
            continue
        lowest_s = timed[a] + (0.0 if is_untried else least * (b - 1 - a))
        gain = (timed[a] + slope * (b - 1 - a)) / max(1e-9, lowest_s) - 1.0
        faster = (b - 1) / max(1e-9, lowest_s) / best_rate - 1.0
        worth = faster if faster > WORTH_TIMING else 0.0, gain
        if gain > WORTH_TIMING and worth > most:
            most, found = worth, a + 1 if is_untried else (a + b) // 2
    return found


def with_stairs(timed: Mapping[int, float], declared: Sequence[int]) -> dict[int, float]:
    """What was timed, and where a policy pads its batches, what one row more than each size takes:
    as long as the next. Without it 65 rows are expected to take little more than 64, not 128."""
    ends = sorted({max(timed), *(size for size in declared if size in timed)}) if declared else []
    return {**timed, **{end + 1: timed[after] for end, after in pairwise(ends)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What the model expects of `lanes` lanes."""

    lanes: int
    batch: int
    chunks_per_s: float
    steps_per_s: float
    limit: str
    """`cores`, `policy`, or `latency`: more lanes would help, for neither is busy all the time."""
    cores_busy: float
    """Share of the cores' time, 0 to 1."""
    policy_busy: float
    """Share of the policy's time, 0 to 1."""


BUSY = 0.95
"""Cores or a policy this busy are the limit: more lanes no longer help. The last
5 % of a rate may cost many lanes, each with an env in memory."""


ROUNDS = 12
"""Times that the lanes which execute at once are computed from the rate, and the rate from them. By
then both are within 1 % of what they come to, unless the cores are the limit: then it is one."""


def plan(
    lanes: Sequence[int], work: ChunkWork, latency: LatencyOf, *, actions_per_chunk: float
) -> list[PlanRow]:
    return [_plan_row(count, work, latency, actions_per_chunk) for count in lanes]


def _plan_row(lanes: int, work: ChunkWork, latency: LatencyOf, actions: float) -> PlanRow:
    slots = max(1.0, work.concurrency)
    own = max(1, round(lanes / slots))
    top = min(own, work.max_batch)
    infer_s = np.array([0.0, *map(latency, range(1, top + 1))]) / min(1.0, work.concurrency)
    sizes = cohort_sizes(own, top)
    least_s = min(
        cycle_s(batch, lanes, work, latency, is_whole=False)
        for batch in range(1, min(lanes, work.max_batch) + 1)
    )
    in_step = lanes / max(1e-9, least_s)
    executing, rate = float(lanes), 0.0
    for _ in range(ROUNDS):
        execute_s = max(1e-9, work.executing_s(executing))
        alone_s = max(1e-9, (1.0 - work.overlap) * execute_s)
        value = Value(own, alone_s, infer_s, sizes, work.slowed, executing * (1.0 - own / lanes))
        rate = sqrt(in_step * lanes * min(value.rate / own, 1.0 / execute_s))
        before, executing = executing, min(lanes, rate * execute_s)
        if work.executing_s(executing) > 0.99 * work.executing_s(before):
            break
    cores_busy = min(1.0, rate * work.execute_s * work.contention / work.cores)
    # A policy may be busy all the time, and could still give more in larger batches.
    most = slots * float((np.arange(1, top + 1) / np.maximum(1e-9, infer_s[1:])).max())
    limit = "latency"
    if max(cores_busy, rate / most) >= BUSY:
        limit = "cores" if cores_busy >= rate / most else "policy"
    return PlanRow(
        lanes=lanes,
        batch=max(1, round(value.rate / max(1e-9, value.batches))),
        chunks_per_s=rate,
        steps_per_s=rate * actions,
        limit=limit,
        cores_busy=cores_busy,
        policy_busy=min(1.0, value.busy),
    )


def best_lanes(work: ChunkWork, latency: LatencyOf, *, max_lanes: int) -> int:
    """The smallest number of lanes that saturates the scarcer of cores and policy.

    A policy can be busy with batches of one and still give a fraction of what it could, so
    saturated means within 5 % of the most that any number up to `max_lanes` gives.
    """

    def rate(lanes: int) -> float:
        return plan((lanes,), work, latency, actions_per_chunk=1)[0].chunks_per_s

    # Numbers a fifth apart are looked at, then those between the last too few and the first enough.
    tried, lanes = {max_lanes: rate(max_lanes)}, 1
    while lanes < max_lanes:
        tried[lanes] = rate(lanes)
        lanes = max(lanes + 1, round(1.2 * lanes))
    enough = BUSY * max(tried.values())
    most = min(lanes for lanes, found in tried.items() if found >= enough)
    fewest = max((lanes for lanes in tried if lanes < most), default=0) + 1
    return fewest + bisect_left(range(fewest, most), enough, key=rate)
