"""The cost of a batch by its size, learnt from measurements. Nothing here keeps time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.workers.median import RunningMedian


class Latency:
    """L(B, t) = scale(t) shape(B), from what was measured: monotone in B, deaf to single outliers.

    Each size keeps the median of its last few measurements, each divided by the scale of its time;
    neighbours that contradict monotonicity are pooled; between sizes the shape is linear. Above the
    largest it goes on with the mean slope, so a size never tried is not believed to be free. A
    policy that becomes slower does so at all sizes: one scale follows it.
    """

    # Figures are of `benchmarks/engine/scheduling_simulation.py`.
    WINDOW = 9
    """Measurements of a size whose median counts."""
    OUTLIER = 4.0
    """A measurement counts at most as this many times what was expected, and at least as that
    share of it."""
    MEMORY = 0.5
    """Weight of the newest batch in the scale. With 0.2 a policy that became slower has its
    favourite size blamed for it: one setting of many lost 8 %."""
    OWN = 5
    """Measurements by which a size that no warm-up timed is known. Before that, what is unexpected
    is the size's own, not the scale's: with 1 a stair that was not expected was taken for a policy
    that slowed down, and one setting lost a third."""

    def __init__(self, points: Mapping[int, float] | None = None) -> None:
        self._measured: dict[int, RunningMedian] = {}
        self._scale = 1.0
        self._ratios = RunningMedian(3)
        """What the last batches took, over what was expected: one hiccup is no drift."""
        self._ratios.add(1.0)
        self._ratios.add(1.0)
        self._sizes: list[int] = []
        self._seconds: list[float] = []
        self._stale = False
        self.timed: dict[int, float] = {}
        """Seconds of sizes that were measured under control."""
        for size, seconds in (points or {}).items():
            self.seed(size, seconds)

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` took `seconds`."""
        if size < 1 or seconds < 0:
            raise ValueError(f"A batch of {size} cannot take {seconds} s.")
        if not self._sizes:
            self._fit()
        is_known = bool(self._sizes) and self._sizes[0] <= size <= self._sizes[-1]
        shape = interpolate(size, self._sizes, self._seconds) if is_known else 0.0
        if shape > 0 and seconds > 0:
            ratio = seconds / (shape * self._scale)
            ratio = min(max(ratio, 1.0 / self.OUTLIER), self.OUTLIER)
            seconds = ratio * shape * self._scale
            if size in self.timed or len(self._measured.get(size, ())) >= self.OWN:
                self._ratios.add(ratio)
                self._scale *= (self._ratios.value or 1.0) ** self.MEMORY
            if size not in self._measured:
                # What its neighbours say counts twice, or one outlier at a new size would be all
                # that is known of it, and the size would not be tried again.
                self._add(size, shape)
                self._add(size, shape)
        self._add(size, seconds / self._scale)

    def seed(self, size: int, seconds: float) -> None:
        """A measurement under control, as at warm-up: believed as it is."""
        self._add(size, seconds / self._scale)
        self.timed[size] = seconds

    def _add(self, size: int, shape: float) -> None:
        if size not in self._measured:
            self._measured[size] = RunningMedian(self.WINDOW)
        self._measured[size].add(shape)
        self._stale = True

    def predict(self, size: int) -> float:
        """Seconds for a batch of `size`; 0 before anything was measured."""
        self._fit()
        return self.about(size)

    __call__ = predict

    def about(self, size: int) -> float:
        """`predict`, by the shape of the last time that it was asked for: to fit anew for every
        batch would cost more than the batch's share."""
        if not self._sizes:
            return 0.0
        return self._scale * interpolate(size, self._sizes, self._seconds)

    def at_first(self, size: int) -> float:
        """Seconds of `size` under control, before any lane executed."""
        sizes = sorted(self.timed)
        return interpolate(size, sizes, [self.timed[known] for known in sizes])

    def curve(self, largest: int) -> NDArray[np.float64]:
        """Seconds of every size from 0 (which takes none) to `largest`."""
        most = self.predict(largest)
        known = [size for size in self._sizes if size < largest]
        seconds = [self._scale * shape for shape in self._seconds[: len(known)]]
        found = np.interp(np.arange(largest + 1), [*known, largest], [*seconds, most])
        found[0] = 0.0
        return found

    def _fit(self) -> None:
        if not self._stale:
            return
        self._stale = False
        self._sizes = sorted(self._measured)
        medians = [self._measured[size] for size in self._sizes]
        self._seconds = monotone(
            [median.value or 0.0 for median in medians], [len(median) for median in medians]
        )


OFF, CHANGED, ADDED = 0.05, 0.1, 3.0
"""By how much an inference is off for other reasons, a policy has changed, and all lanes together
may add: standard deviations, as shares of an inference."""
LEAST, CLEAR, FEWEST = 0.1, 0.5, 4
"""All lanes must add this share, and leave unexplained at most this part of what so many inferences
are off, or they are taken to add nothing."""


def slowed_by(
    inferred: Sequence[tuple[int, int, float]], at_first: Callable[[int], float], lanes: int
) -> float:
    """The share by which each of `lanes` lanes that executes makes an inference longer, as where
    they render on the policy's GPU; what is common to all inferences is no lane's doing.
    `inferred` has rows, lanes that executed, and seconds; `at_first` is what rows take alone."""
    size, beside, took = np.array(inferred).T
    off = took / [max(1e-9, at_first(int(rows))) for rows in size] - 1.0
    doubt = np.array([OFF / CHANGED, OFF / ADDED]) ** 2
    columns = np.stack([np.ones(len(off)), beside / lanes])
    gram, with_off = columns @ columns.T + np.diag(doubt), columns @ off
    common, slope = found = np.linalg.solve(gram, with_off)
    # How improbable what is left is, where lanes add that much, and where they add nothing.
    left, left_alone = off @ off - with_off @ found, off @ off - with_off[0] ** 2 / gram[0, 0]
    is_clear = len(off) >= FEWEST and left < CLEAR * left_alone and slope > LEAST
    return float(slope / (1.0 + common)) / lanes if is_clear and common > -0.5 else 0.0


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
