"""Statistics of a LeRobotDataset's features, for an episode and for the whole dataset.

Least, greatest, mean and deviation are exact. Quantiles are exact too, up to a number of rows; in
larger datasets they are those of rows taken evenly from all. Pictures are counted in a histogram.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hocket.core.data import Array

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_MOST_ROWS = 200_000
_LEVELS = 256
_FINEST = 160
"""Pictures are thinned out to about this many pixels a side, which hardly changes statistics."""

Stats = Mapping[str, Array]


@dataclass(slots=True)
class VectorStats:
    """The statistics of rows `[n, D]` that come bit by bit."""

    count: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(0))
    squares: Array = field(default_factory=lambda: np.zeros(0))
    """The sum of squared differences from the mean."""
    least: Array = field(default_factory=lambda: np.zeros(0))
    greatest: Array = field(default_factory=lambda: np.zeros(0))
    _kept: list[Array] = field(default_factory=list)
    _stride: int = 1

    def add(self, rows: Array) -> None:
        """Add rows, at least one."""
        rows = rows.reshape(len(rows), -1)
        rows = rows.astype(np.float64)
        kept = rows[-self.count % self._stride :: self._stride].astype(np.float32)
        mean = rows.mean(axis=0)
        squares = ((rows - mean) ** 2).sum(axis=0)
        if not self.count:
            self.mean, self.squares = mean, squares
            self.least, self.greatest = rows.min(axis=0), rows.max(axis=0)
        else:
            apart, total = mean - self.mean, self.count + len(rows)
            self.squares += squares + apart**2 * (self.count * len(rows) / total)
            self.mean += apart * (len(rows) / total)
            self.least = np.minimum(self.least, rows.min(axis=0))
            self.greatest = np.maximum(self.greatest, rows.max(axis=0))
        self.count += len(rows)
        self._kept.append(kept)
        if sum(map(len, self._kept)) > _MOST_ROWS:
            self._kept, self._stride = [np.concatenate(self._kept)[::2]], self._stride * 2

    def finish(self) -> Stats:
        """The statistics that LeRobot keeps of a feature."""
        rows = np.concatenate(self._kept)
        found = {
            "min": self.least,
            "max": self.greatest,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.count),
            "count": np.array([self.count]),
        }
        quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
        return {**found, **dict(zip(QUANTILES, quantiles.astype(np.float64), strict=True))}


@dataclass(slots=True)
class PictureStats:
    """The statistics of uint8 pictures `[height, width, 3]`, by channel, as numbers from 0 to 1."""

    count: int = 0
    """How many pictures were added."""
    histogram: Array = field(default_factory=lambda: np.zeros((3, _LEVELS), np.int64))

    def add(self, picture: Array) -> None:
        """Add a picture."""
        stride = max(1, max(picture.shape[:2]) // _FINEST)
        thin = picture[::stride, ::stride]
        for channel in range(3):
            self.histogram[channel] += np.bincount(thin[..., channel].ravel(), minlength=_LEVELS)
        self.count += 1

    def merge(self, other: PictureStats) -> None:
        """Add what another has seen."""
        self.histogram += other.histogram
        self.count += other.count

    def finish(self) -> Stats:
        """The statistics that LeRobot keeps of a camera, `[3, 1, 1]` each."""
        levels = np.arange(_LEVELS) / (_LEVELS - 1)
        weights = self.histogram / self.histogram.sum(axis=1, keepdims=True)
        mean = weights @ levels
        spread = np.sqrt(np.maximum(weights @ levels**2 - mean**2, 0))
        parts = np.cumsum(weights, axis=1)
        found = {
            "min": levels[(self.histogram > 0).argmax(axis=1)],
            "max": levels[_LEVELS - 1 - (self.histogram[:, ::-1] > 0).argmax(axis=1)],
            "mean": mean,
            "std": spread,
        }
        for name, share in QUANTILES.items():
            found[name] = levels[(parts >= share - 1e-12).argmax(axis=1)]
        shaped = {name: value.reshape(3, 1, 1) for name, value in found.items()}
        return {**shaped, "count": np.array([self.count])}


def sampled(length: int) -> set[int]:
    """The indices of the pictures that the statistics of an episode are made from: all of a short
    one, and some of a long one, evenly spread."""
    wanted = min(length, max(100, int(length**0.75)))
    return set(np.linspace(0, length - 1, wanted).round().astype(int).tolist())
