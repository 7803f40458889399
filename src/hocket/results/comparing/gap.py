"""How far two rates lie apart, and what that means for the claim that they are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.results.comparing.paired import Difference
from hocket.results.stats import Rate
from hocket.results.tables import signed

Agreement = Literal["agrees", "differs", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A difference a - b of rates, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Trials of a."""
    own: float
    """The part of the interval's half width that more trials of a would narrow."""

    @classmethod
    def of_pairs(cls, found: Difference) -> Gap | None:
        """The gap of paired trials; None where none was judged on both sides."""
        if found.value is None or found.interval is None:
            return None
        low, high = found.interval.low, found.interval.high
        return cls(value=found.value, low=low, high=high, n=found.n, own=(high - low) / 2)

    @classmethod
    def of_rates(cls, a: Rate, b: Rate) -> Gap | None:
        """The gap of rates of different trials, by Newcombe: squared distances to the ends of the
        rates' own intervals add up. None where a side has no trial that was judged."""
        if a.value is None or b.value is None or a.interval is None or b.interval is None:
            return None
        value = a.value - b.value
        return cls(
            value=value,
            low=value - math.hypot(a.value - a.interval.low, b.interval.high - b.value),
            high=value + math.hypot(a.interval.high - a.value, b.value - b.interval.low),
            n=a.n,
            own=(a.interval.high - a.interval.low) / 2,
        )

    @classmethod
    def joined(cls, parts: Sequence[Gap | None]) -> Gap | None:
        """The gap over parts that share no trial, each weighing by its n; None where there are
        none."""
        known = [part for part in parts if part is not None]
        n = sum(part.n for part in known)
        if not n:
            return None
        value = sum(part.n * part.value for part in known) / n
        low = math.hypot(*(part.n * (part.value - part.low) for part in known)) / n
        high = math.hypot(*(part.n * (part.high - part.value) for part in known)) / n
        return cls(value=value, low=value - low, high=value + high, n=n, own=(low + high) / 2)

    @property
    def reach(self) -> float:
        """How far from 0 the interval goes."""
        return max(abs(self.low), abs(self.high))

    def agreement(self, within: float) -> Agreement:
        """`differs` where the interval leaves out 0, `agrees` where it lies `within` that much."""
        if self.low > 0 or self.high < 0:
            return "differs"
        return "agrees" if self.reach <= within else "undecided"

    def more_needed(self, within: float) -> int | None:
        """About how many more trials of a would tell either way, if the gap stays as it is; None
        where no number would, since b has too few."""
        target = max(abs(self.value), within - abs(self.value))
        half = (self.high - self.low) / 2
        room = target**2 - (half**2 - self.own**2)
        return math.ceil(self.n * self.own**2 / room) - self.n if room > 0 else None

    def __str__(self) -> str:
        value, low, high = (signed(x, percents=True) for x in (self.value, self.low, self.high))
        return f"{value} points, 95 % interval [{low}, {high}]"

    def to_json(self) -> dict[str, float]:
        """Values from -1 to 1, and the n of a."""
        return {"difference": self.value, "low": self.low, "high": self.high, "n": self.n}
