"""The model of one cycle: what throughput to expect of lanes, cores and a policy.

A lane executes a chunk, waits for a batch to leave, and is answered. N lanes in batches of B form
g = ceil(N / B) cohorts; while one is inferred the others execute. S is the time to execute a chunk
alone, C the number of cores, L(B) the time to infer a batch, K the inferences that run at once:

    cycle(B) = E(N) + L(N)                               if g = 1
             = max(g L(B) / K, E(B) + L(B), E(N))        if g > 1
    E(n)     = S max(1, n / C) ** contention

With a delay of d of a chunk's s steps, lanes execute a share h = d / s of it while the policy
works, so that E + L becomes max(L, h E) + (1 - h) E.

`contention` is 1 where chunks compute all the time (E(N) is then N S / C, the cores' own limit) and
0 where they do not compete for cores: they sleep, or wait for a device. `hocket plan` and `--lanes
auto` go by it, and rows that share a step; when a batch leaves is decided by what
`hocket.engine.value` knows. Nothing here keeps time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

LatencyOf = Callable[[int], float]
"""Seconds to infer a batch, by its rows."""

NEAR_BEST = 0.98
"""A smaller batch within 2 % of the best throughput is preferred: it answers sooner. Chosen by
hand; with 10 % the settings of `scheduling_simulation.py` lose up to 6 %, with none 1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
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

    def executing_s(self, lanes: float) -> float:
        """Seconds to execute a chunk while `lanes` of them execute."""
        return float(self.execute_s * max(1.0, lanes / self.cores) ** self.contention)

    def turn_s(self, lanes: float, infer_s: float) -> float:
        """Seconds from one answer to the next of a lane that waits for nobody else."""
        execute_s = self.executing_s(lanes)
        beside_s = self.overlap * execute_s
        return execute_s - beside_s + max(infer_s, beside_s)


def cycle_s(batch: int, lanes: int, work: Work, latency: LatencyOf) -> float:
    """Seconds in which each of `lanes` lanes executes one chunk, in batches of `batch`."""
    cohorts = ceil(lanes / batch)
    infer_s = latency(min(batch, lanes))
    if cohorts == 1:
        return max(work.turn_s(lanes, infer_s), infer_s / work.concurrency)
    return max(
        cohorts * infer_s / work.concurrency,
        work.turn_s(batch, infer_s),
        work.executing_s(lanes),
    )


def target_batch(lanes: int, work: Work, latency: LatencyOf) -> int:
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


def sizes_to_time(lanes: int, declared: Sequence[int]) -> list[int]:
    """The batches whose latency a warm-up had better know beside powers of two: those that a policy
    pads to, or else, so that stairs and knees are seen, three times a power of two, one more than a
    power, and what halves, thirds and quarters of the lanes make."""
    powers = [1 << power for power in range(lanes.bit_length())]
    sizes = declared
    if not sizes:
        cohorts = [ceil(lanes / parts) for parts in (2, 3, 4)]
        sizes = [*cohorts, *(size + 1 for size in powers), *(3 * size for size in powers)]
    return sorted({size for size in sizes if size <= lanes}.difference(powers, [lanes]))


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
"""Cores or a policy this busy are the limit: more lanes no longer help. Chosen by hand, with no
benchmark row: the last 5 % of a rate may cost many lanes, each with an env in memory."""


def plan(
    lanes: Sequence[int], work: Work, latency: LatencyOf, *, actions_per_chunk: float
) -> list[PlanRow]:
    return [_plan_row(count, work, latency, actions_per_chunk) for count in lanes]


def _plan_row(lanes: int, work: Work, latency: LatencyOf, actions: float) -> PlanRow:
    batch = target_batch(lanes, work, latency)
    seconds = cycle_s(batch, lanes, work, latency)
    rate = lanes / seconds if seconds > 0 else inf
    cores_busy = min(1.0, rate * work.execute_s * work.contention / work.cores)
    policy_busy = min(1.0, ceil(lanes / batch) * latency(batch) / work.concurrency / seconds)
    limit = "latency"
    if max(cores_busy, policy_busy) >= BUSY:
        limit = "cores" if cores_busy >= policy_busy else "policy"
    return PlanRow(
        lanes=lanes,
        batch=batch,
        chunks_per_s=rate,
        steps_per_s=rate * actions,
        limit=limit,
        cores_busy=cores_busy,
        policy_busy=policy_busy,
    )


def best_lanes(work: Work, latency: LatencyOf, *, max_lanes: int) -> int:
    """The smallest number of lanes that saturates the scarcer of cores and policy.

    A policy can be busy with batches of one and still give a fraction of what it could, so
    saturated means within 5 % of the most that any number up to `max_lanes` gives.
    """
    rows = plan(range(1, max_lanes + 1), work, latency, actions_per_chunk=1)
    enough = BUSY * max(row.chunks_per_s for row in rows)
    return next(row.lanes for row in rows if row.chunks_per_s >= enough)
