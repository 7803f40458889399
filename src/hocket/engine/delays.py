"""How many control steps the world goes on while the policy thinks. A delay is an input: it is
said, or drawn from trial and chunk, never read from a clock, so that the same trial gives the same
result.

    4              always four steps
    80ms           milliseconds, by the env's control rate: the steps that begin before the answer
                   is there, so a step that is under way counts whole
    2..6           drawn evenly between both, anew for every chunk; also uniform:2..6
    spikes:2..9@P  2, but 9 in a share P of the chunks
    geometric:2..9@P   2, and one more with probability P each, up to 9
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Literal

from hocket.core.data import Trial
from hocket.errors import ConfigError

MEASURED = "measured"
"""Stands for this machine's latency of one row, until it was measured."""
_FORM = re.compile(
    r"(?:(?P<law>[a-z]+):)?(?P<low>\d+(?:\.\d+)?)(?:\.\.(?P<high>\d+(?:\.\d+)?))?(?P<unit>ms)?"
    r"(?:@(?P<share>\d*\.?\d+))?"
)
_LAWS = ("uniform", "spikes", "geometric")
_SLACK = 1e-6
"""Share of a step by which a latency may be longer than whole steps: milliseconds are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The delay of every chunk of every trial, in control steps."""

    low: float
    """In steps, or in milliseconds."""
    high: float
    unit: Literal["steps", "ms"] = "steps"
    law: str = "uniform"
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Delays:
        """Read what a user wrote for one run; `sweep` cuts a list of several."""
        found = _FORM.fullmatch(text.strip())
        if found is None or found["law"] not in (None, *_LAWS):
            raise ConfigError(
                f"--delay {text} is no delay. Give control steps (4), milliseconds (80ms), a range "
                f"(2..6), a law ({':2..6, '.join(_LAWS)}:2..6@0.1), {MEASURED}, or several of "
                "them, separated by commas."
            )
        low = float(found["low"])
        high = float(found["high"] or found["low"])
        law = found["law"] or "uniform"
        share = float(found["share"] or 0.0)
        if found["unit"] is None and not (low.is_integer() and high.is_integer()):
            raise ConfigError(f"--delay {text}: control steps are whole; milliseconds end in ms.")
        if high < low:
            raise ConfigError(f"--delay {text}: the range ends before it begins.")
        if (law == "uniform") != (found["share"] is None) or share > 1:
            raise ConfigError(
                f"--delay {text}: {law} takes "
                + ("no share." if law == "uniform" else "a share between 0 and 1, as in @0.1.")
            )
        return cls(
            low=low, high=high, unit="ms" if found["unit"] else "steps", law=law, share=share
        )

    @property
    def is_zero(self) -> bool:
        return self.high == 0

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high

    def bounds(self, rate: float | None) -> tuple[int, int]:
        """The least and the most steps; `rate` is the env's control steps a second."""
        if self.unit == "steps":
            return int(self.low), int(self.high)
        if not rate:
            raise ConfigError(
                "--delay in milliseconds needs the env's control rate, which it does not say: give "
                "the delay in control steps."
            )
        return _whole(self.low * rate / 1000), _whole(self.high * rate / 1000)

    def steps(self, trial: Trial, chunk: int, rate: float | None) -> int:
        """The delay of one chunk."""
        low, high = self.bounds(rate)
        if low == high:
            return low
        drawn = _draw(trial, chunk)
        if self.law == "spikes":
            return high if drawn < self.share else low
        if self.law == "geometric":
            if self.share >= 1:
                return high
            more = int(math.log(1.0 - drawn) / math.log(self.share)) if self.share else 0
            return min(high, low + more)
        return low + int(drawn * (high - low + 1))


def sweep(text: str) -> list[str]:
    """The delays of a list, `0,1,2,4,8`; one where there is no comma."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part != MEASURED:
            Delays.parse(part)
    if len(set(parts)) < len(parts):
        raise ConfigError(f"--delay {text} names a delay twice.")
    return parts


def _whole(steps: float) -> int:
    return math.ceil(steps - _SLACK)


def _draw(trial: Trial, chunk: int) -> float:
    """A number in [0, 1) keyed by trial and chunk, apart from the policy's noise."""
    text = f"delay\0{trial.suite}\0{trial.task}\0{trial.seed}\0{trial.repeat}\0{chunk}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)
