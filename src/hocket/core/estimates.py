"""What is learnt from measurements: a median, the cost of a batch by its size, and how much chunks
slow each other down. Nothing here keeps time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, log


class RunningMedian:
    """The median of the last `window` numbers; None before the first."""

    __slots__ = ("_last", "_sorted", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if len(self._last) == self._window:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(value)
        insort(self._sorted, value)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def value(self) -> float | None:
        return self._sorted[len(self._sorted) // 2] if self._sorted else None


class Contention:
    """How much chunks slow each other down, learnt from how long they took at which load.

    The exponent of E(n), as the slope of log seconds over log load, both with exponential
    forgetting. Without evidence it is 1: chunks that compute.
    """

    # Chosen by hand; figures are of `benchmarks/scheduling_simulation.py`.
    MEMORY = 1 / 128
    """Weight of the newest chunk. With 1 / 1024 very short chunks on 2 cores lose 3 %; with 1 / 16
    no setting changes by more than 1.3 %."""
    EVIDENCE = 0.01
    """Variance of the log load at which the data weigh as much as the assumption. Without it a load
    that hardly varies would make a slope of noise. With 0.0001 or 1 no setting changes by more
    than 1 %."""

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

    # Chosen by hand; figures are of `benchmarks/scheduling_simulation.py`.
    WINDOW = 9
    """Measurements of a size whose median counts. With 1, a policy with padded sizes loses 1 %."""
    OUTLIER = 4.0
    """A measurement counts at most as this many times what was expected, and at least as that
    share of it. No setting has a row that needs it: the median alone bears the outliers there."""

    def __init__(self, points: Mapping[int, float] | None = None) -> None:
        self._measured: dict[int, RunningMedian] = {}
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        self._stale = False
        for size, seconds in (points or {}).items():
            self.seed(size, seconds)

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
