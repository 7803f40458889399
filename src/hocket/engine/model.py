"""The model of one cycle: what throughput to expect of lanes, cores and a policy.

A lane executes a chunk, waits for a batch to leave, and is answered. N lanes in batches of B form
g = ceil(N / B) cohorts; while one is inferred the others execute. S is the time to execute a chunk
alone, C the number of cores, L(B) the time to infer a batch, K the inferences that run at once:

    cycle(B) = E(N) + L(N)                               if g = 1
             = max(g L(B) / K, E(B) + L(B), E(N) + H)    if g > 1
    E(n)     = S max(1, n / C) ** contention

`contention` is 1 where chunks compute all the time (E(N) is then N S / C, the cores' own limit) and
0 where they do not compete for cores: they sleep, or wait for a device. H is what the handling of g
batches takes from chunks that compute: its seconds, over C. Nothing here keeps time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log

from hocket.core.median import RunningMedian

LatencyOf = Callable[[int], float]
"""Seconds to infer a batch of so many rows."""

NEAR_BEST = 0.98
"""A smaller batch within 2 % of the best throughput is preferred: it answers sooner."""


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
    handling_s: float = 0.0
    handling_row_s: float = 0.0
    """Seconds of a core that each batch takes beside the policy, and each row in it."""

    def executing_s(self, lanes: float) -> float:
        """Seconds to execute a chunk while `lanes` of them execute."""
        return float(self.execute_s * max(1.0, lanes / self.cores) ** self.contention)


def cycle_s(batch: int, lanes: int, work: Work, latency: LatencyOf) -> float:
    """Seconds in which each of `lanes` lanes executes one chunk, in batches of `batch`."""
    cohorts = ceil(lanes / batch)
    infer_s = latency(min(batch, lanes))
    if cohorts == 1:
        return max(work.executing_s(lanes) + infer_s, infer_s / work.concurrency)
    return max(
        cohorts * infer_s / work.concurrency,
        work.executing_s(batch) + infer_s,
        _cores_s(cohorts, lanes, work),
    )


def spare_s(batch: int, lanes: int, work: Work, latency: LatencyOf) -> float:
    """For how long a batch may be held back at nobody's cost: cores that are never idle are what
    limits the cycle, and neither the policy nor the way of a chunk is as long as that."""
    cohorts = ceil(lanes / batch)
    if cohorts == 1:
        return 0.0
    infer_s = latency(batch)
    others_s = max(cohorts * infer_s / work.concurrency, work.executing_s(batch) + infer_s)
    return max(0.0, _cores_s(cohorts, lanes, work) - others_s)


def _cores_s(cohorts: int, lanes: int, work: Work) -> float:
    """Seconds of a cycle in which the cores do all that there is to do."""
    handled_s = cohorts * work.handling_s + lanes * work.handling_row_s
    competing_s = work.contention * handled_s / work.cores if lanes >= work.cores else 0.0
    return work.executing_s(lanes) + competing_s


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


class Contention:
    """How much chunks slow each other down, learnt from how long they took at which load.

    The exponent of E(n), as the slope of log seconds over log load, both with exponential
    forgetting. Without evidence it is 1: chunks that compute.
    """

    MEMORY = 1 / 128
    EVIDENCE = 0.01
    """Variance of the log load at which the data weigh as much as the assumption."""

    __slots__ = ("_cores", "_covariance", "_load", "_seconds", "_variance")

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._load: float | None = None
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def observe(self, lanes: float, ratio: float) -> None:
        """A chunk took `ratio` times its kind's median while `lanes` executed on average."""
        load = log(max(1.0, lanes / self._cores))
        seconds = log(min(max(ratio, 0.1), 10.0))
        if self._load is None:
            self._load, self._seconds = load, seconds
            return
        apart, off = load - self._load, seconds - self._seconds
        self._load += self.MEMORY * apart
        self._seconds += self.MEMORY * off
        self._variance += self.MEMORY * (apart * apart - self._variance)
        self._covariance += self.MEMORY * (apart * off - self._covariance)

    @property
    def exponent(self) -> float:
        rise = (self._covariance + self.EVIDENCE) / (self._variance + self.EVIDENCE)
        return min(max(rise, 0.0), 1.0)

    @property
    def slowdown(self) -> float:
        """How many times longer than alone chunks take at the load seen lately."""
        return exp(self.exponent * (self._load or 0.0))


class Latency:
    """L(B), fitted to what was measured: monotone in B, and deaf to single outliers.

    Each size keeps the median of its last few measurements; neighbours that contradict
    monotonicity are pooled; between sizes the fit is linear. Above the largest size it goes on
    with the mean slope, so a size never tried is not believed to be free.
    """

    WINDOW = 9
    OUTLIER = 4.0
    """A measurement counts at most as so many times what was expected, or as one such part."""

    def __init__(self, points: Mapping[int, float] | None = None) -> None:
        self._measured: dict[int, RunningMedian] = {}
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        self._stale = False
        for size, seconds in (points or {}).items():
            self.seed(size, seconds)

    def __bool__(self) -> bool:
        return bool(self._measured)

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` took `seconds`."""
        if size < 1 or seconds < 0:
            raise ValueError(f"A batch of {size} cannot take {seconds} s.")
        if not self._sizes:
            self._fit()
        # Not `predict`: to fit anew for every batch would cost more than the batch's share.
        usual = interpolate(size, self._sizes, self._seconds) if self._sizes else 0.0
        if self._sizes and self._sizes[0] <= size <= self._sizes[-1] and usual > 0:
            if size not in self._measured:
                # What its neighbours say counts twice, or one outlier at a new size would be all
                # that is known of it, and the size would not be tried again.
                self.seed(size, usual)
                self.seed(size, usual)
            seconds = min(max(seconds, usual / self.OUTLIER), usual * self.OUTLIER)
        self.seed(size, seconds)

    def seed(self, size: int, seconds: float) -> None:
        """A measurement under control, as at warm-up: believed as it is."""
        self._measured.setdefault(size, RunningMedian(self.WINDOW)).add(seconds)
        self._stale = True

    def predict(self, size: int) -> float:
        """Seconds for a batch of `size`; 0 before anything was measured."""
        if self._stale:
            self._fit()
        if not self._sizes:
            return 0.0
        return interpolate(size, self._sizes, self._seconds)

    __call__ = predict

    def _fit(self) -> None:
        self._stale = False
        self._sizes = sorted(self._measured)
        medians = [self._measured[size] for size in self._sizes]
        self._seconds = monotone(
            [median.value or 0.0 for median in medians], [len(median) for median in medians]
        )


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The closest sequence that never falls (pool adjacent violators, weighted squares)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            left, left_mass, left_count = pools.pop()
            mean = (left * left_mass + mean * mass) / (left_mass + mass)
            mass, count = mass + left_mass, count + left_count
        pools.append((mean, mass, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def interpolate(size: int, sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Linear between known sizes, flat below the smallest, the mean slope above the largest."""
    right = bisect_left(sizes, size)
    if right == 0:
        return seconds[0]
    if right < len(sizes):
        share = (size - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else 0.0
    return seconds[-1] + slope * (size - sizes[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What the model expects of so many lanes."""

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
"""Cores or a policy this busy are the limit: more lanes no longer help."""


def plan(
    lanes: Sequence[int], work: Work, latency: LatencyOf, *, actions_per_chunk: float
) -> list[PlanRow]:
    """What to expect of each number of lanes."""
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
