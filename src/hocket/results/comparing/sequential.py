"""Tests that may be looked at after every round of pairs, and stop a comparison as soon as it is
decided; what one came to, and how that is kept with the run that it ended. Pure: a round's outcomes
in, a look out; a look costs the same however many came before."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array, Outcome
from hocket.results.comparing.paired import Verdict
from hocket.results.stats import LEVEL, Interval

Stake = Literal["pairs", "rounds"]
"""What a test bets on: every pair, which must then be independent, or the mean of each round."""
_NODES = 128
"""Bets of the mixture where it has no closed form. Any number is valid; this many leave nothing to
gain up to some thousand rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known after `pairs` complete pairs."""

    pairs: int
    only_a: int
    only_b: int
    decision: Verdict
    number: int = 0
    """The how-many-th look it is, from 1."""
    p_value: float = 1.0
    """Valid whenever one stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSequentialTest:
    """A test martingale on paired trials: errs with probability `alpha` at most, over all looks.

    Bet on a: with one unit, and odds as if a won a share q > 1/2 of the discordant pairs, every
    such pair that a wins multiplies the capital by 2q, every other by 2(1 - q). If a is not
    better, no such bet grows on average, nor does their mixture over q (Beta(prior, prior), cut
    to q > 1/2), so that it ever exceeds 2/alpha with probability alpha/2 at most (Ville). The
    same bet on b has the other half of alpha.

    Where tasks differ and only their mean matters, trials are planned in rounds of one per task,
    and looks are at whole rounds. With `bets_on` "pairs" the bets of a round are multiplied: its
    product has a mean of at most 1 whenever the tasks' mean difference is not above 0 (numbers
    whose mean is at most 1 multiply to at most 1), if the trials of a round are independent. With
    "rounds" one bet is made on the mean difference m of a round, which multiplies the capital by
    1 + (2q - 1) m: valid however the trials of a round hang together, and dearer, since ten trials
    that agree count no more than one. That mixture leans to high odds, as the mean of many moves
    little. A round of one pair is the same in both.
    """

    alpha: float = 0.05
    pairs_per_round: int = 1
    prior: float = 2.0
    bets_on: Stake = "rounds"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1 or self.pairs_per_round < 1 or self.prior <= 0:
            raise ValueError(f"{self} is no test: alpha in (0, 1), a round of one pair or more.")

    def begin(self) -> PairedLooks:
        return PairedLooks(self)

    def run(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Look:
        """Look at pairs in planned order: the first look that decides, or else the last."""
        won_a, won_b = _successes(a, b)
        looks, size = self.begin(), self.pairs_per_round
        for at in range(0, len(won_a) - size + 1, size):
            if looks.see(won_a[at : at + size], won_b[at : at + size]).decision != "undecided":
                break
        return looks.look

    @property
    def is_by_pair(self) -> bool:
        return self.bets_on == "pairs" or self.pairs_per_round == 1

    @property
    def name(self) -> str:
        """What the test bets on, in words."""
        if self.pairs_per_round == 1:
            return "paired sequential test"
        if self.is_by_pair:
            return "paired sequential test, betting on every pair of independent starts"
        return "paired sequential test, betting on the mean of each round"

    @property
    def threshold(self) -> float:
        """The log of the capital that decides."""
        return math.log(2 / self.alpha)

    def evidence(self, wins: Array, losses: Array) -> Array:
        """Log of the capital of the bets on pairs, for the side with `wins`, elementwise."""
        from scipy import special

        up, down = wins + self.prior, losses + self.prior
        mixture = special.betaln(up, down) - special.betaln(self.prior, self.prior)
        with np.errstate(divide="ignore"):  # a hopeless bet has nothing left: log 0
            upper_half = np.log(special.betainc(down, up, 0.5))
        return np.asarray((wins + losses + 1) * math.log(2.0) + mixture + upper_half)

    def odds(self) -> _Odds:
        """The bets of the mixture, one by one."""
        return _odds(self.prior if self.is_by_pair else None)


class PairedLooks:
    """One comparison under way: the looks of a paired sequential test."""

    def __init__(self, test: PairedSequentialTest) -> None:
        self._test = test
        self._capitals = np.zeros((2, _NODES))
        """The log of the capital of each bet on a round's mean, for a and for b."""
        self._peak = 0.0
        self._seen: Counter[float] = Counter()
        """How often each difference that is bet on was seen."""
        self.look = Look(pairs=0, only_a=0, only_b=0, decision="undecided")
        """The first look that decided, or else the last."""

    def see(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Look:
        """Look after the next round, of which both sides' successes are given in the same order."""
        won_a, won_b = _successes(a, b)
        size = self._test.pairs_per_round
        if len(won_a) != size:
            raise ValueError(f"A round has {size} pairs, not {len(won_a)}.")
        up, down = int((won_a & ~won_b).sum()), int((won_b & ~won_a).sum())
        if self._test.is_by_pair:
            self._seen.update({1.0: up, -1.0: down, 0.0: size - up - down})
        else:
            self._seen[(up - down) / size] += 1
        if self.look.decision == "undecided":
            self.look = self._next(up, down)
        return self.look

    def interval(self, *, level: float = LEVEL) -> Interval | None:
        """An interval of the difference a - b that is valid whenever one stops: every difference
        that the bets, made about it instead of 0, do not refute. None where nothing was seen."""
        if not self._seen:
            return None
        needed = math.log(2 / (1 - level))
        low = _lower_bound(self._seen, self._test.odds(), needed)
        mirrored = {-value: count for value, count in self._seen.items()}
        high = -_lower_bound(mirrored, self._test.odds(), needed)
        return Interval(low=low, high=high, level=level, method="betting")

    def _next(self, up: int, down: int) -> Look:
        last, test = self.look, self._test
        only_a, only_b = last.only_a + up, last.only_b + down
        if test.is_by_pair:
            sides = np.array([only_a, only_b])
            for_a, for_b = test.evidence(sides, sides[::-1])
        else:
            mean = (up - down) / test.pairs_per_round
            odds = test.odds()
            with np.errstate(divide="ignore"):  # a bet of everything may be lost
                self._capitals += np.log1p(np.outer([mean, -mean], odds.shares))
            for_a, for_b = odds.mixed(self._capitals)
        self._peak = max(self._peak, float(for_a), float(for_b))
        decision: Verdict = "undecided"
        if self._peak >= test.threshold:
            decision = "a better" if for_a > for_b else "b better"
        return Look(
            pairs=last.pairs + test.pairs_per_round,
            only_a=only_a,
            only_b=only_b,
            decision=decision,
            number=last.number + 1,
            p_value=min(1.0, 2.0 * math.exp(-self._peak)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Odds:
    """A mixture of bets: the share of the capital that each stakes, and the log of its weight."""

    shares: Array
    weights: Array

    def mixed(self, capitals: Array) -> Array:
        """The log of the mixture's capital, from the logs of each bet's `[..., nodes]`."""
        return np.asarray(np.logaddexp.reduce(capitals + self.weights, axis=-1))


@functools.cache
def _odds(prior: float | None) -> _Odds:
    """Stakes 2q - 1 with q of Beta(prior, prior) above 1/2; without a prior, stakes s of weight
    3 s^2: of the densities tried it decides soonest where rounds are of four tasks or more and
    stays near the best for two (benchmarks/results/coverage.py)."""
    nodes, spans = np.polynomial.legendre.leggauss(_NODES)
    shares = (nodes + 1) / 2
    density = shares**2 if prior is None else (1 - shares**2) ** (prior - 1)
    weights = spans * density
    return _Odds(shares=shares, weights=np.log(weights / weights.sum()))


def _lower_bound(seen: Mapping[float, int], odds: _Odds, needed: float) -> float:
    """The highest mean that bets on more than it refute; -1 where they refute none."""
    values, counts = np.array(list(seen)), np.array(list(seen.values()), np.float64)

    def refutes(mean: float) -> bool:
        gains = np.outer(odds.shares, (values - mean) / (1 + mean))
        with np.errstate(divide="ignore"):
            return float(odds.mixed(np.log1p(gains) @ counts)) >= needed

    low, high = -1.0 + 1e-9, 1.0
    if not refutes(low):
        return -1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


def _successes(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Array, Array]:
    won_a, won_b = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if won_a.ndim != 1 or won_a.shape != won_b.shape:
        raise ValueError(f"Pairs need one value each; got {won_a.shape} and {won_b.shape}.")
    return won_a, won_b


KEY = "decision"
"""The name under which a run's ledger keeps its decision."""
_JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the test said when the run stopped: a is the run itself, b the one held against it."""

    against: str
    """The folder of the other run, absolute."""
    test: str
    alpha: float
    look: Look
    interval: Interval | None
    """Of the difference a - b, valid at stopping; None where nothing was looked at."""
    error_pairs: int
    """Pairs with an error on one side at least, which count as ties."""
    errors_as_failures: Verdict
    """What the same test says by the same look if every error is a failure."""

    @property
    def stands(self) -> bool:
        """True if errors counted as failures would have decided the same."""
        return self.errors_as_failures == self.look.decision

    def told(self, a: str, b: str) -> str:
        """The decision in words, with the names of both runs."""
        look = self.look
        counts = (
            f"at look {look.number:,}, after {look.pairs:,} pairs ({look.only_a:,} won by {a} "
            f"alone, {look.only_b:,} by {b} alone; p = {look.p_value:.2g}, "
            f"valid at any look; {self.test})"
        )
        if look.decision == "undecided":
            return f"Undecided {counts}."
        return f"Decided {counts}: {a if look.decision == 'a better' else b} is better."

    def errors_told(self, a: str, b: str) -> str:
        """How much rests on counting pairs with an error as ties; empty where there are none."""
        if not self.error_pairs:
            return ""
        named = {"a better": f"{a} is better", "b better": f"{b} is better"}
        other = named.get(self.errors_as_failures, "undecided")
        verdict = "that stands" if self.stands else f"it would be: {other}"
        return (
            f"{self.error_pairs:,} pair{'s' if self.error_pairs > 1 else ''} with an error on one "
            f"side at least count as ties; with errors counted as failures {verdict}."
        )

    def mirrored(self, against: str) -> Decision:
        """The same decision, seen from the other run."""
        look, interval = self.look, self.interval
        return dataclasses.replace(
            self,
            against=against,
            look=dataclasses.replace(
                look, only_a=look.only_b, only_b=look.only_a, decision=_MIRRORED[look.decision]
            ),
            interval=None
            if interval is None
            else dataclasses.replace(interval, low=-interval.high, high=-interval.low),
            errors_as_failures=_MIRRORED[self.errors_as_failures],
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Decision:
        interval = plain["interval"]
        return cls(
            **{
                **plain,
                "look": Look(**plain["look"]),
                "interval": None if interval is None else Interval(**interval),
            }
        )


_MIRRORED: Mapping[Verdict, Verdict] = {
    "a better": "b better",
    "b better": "a better",
    "undecided": "undecided",
}


class PairedRuns:
    """Two runs, looked at round by round. A pair with an error on either side, or with nothing to
    succeed at, is a tie and moves no bet. Where failures tend to crash that flatters a side, so a
    second test takes errors for failures."""

    def __init__(self, test: PairedSequentialTest) -> None:
        self._test = test
        self._looks, self._pessimist = test.begin(), test.begin()
        self._error_pairs = 0

    @property
    def look(self) -> Look:
        return self._looks.look

    def see(self, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Look:
        """Look after the next round, of which both runs' outcomes are given in the same order."""
        pairs = list(zip(ours, theirs, strict=True))
        if self.look.decision == "undecided":
            self._error_pairs += sum(Outcome.ERROR in pair for pair in pairs)
            self._pessimist.see(*_wins(pairs, (*_JUDGED, Outcome.ERROR)))
        return self._looks.see(*_wins(pairs, _JUDGED))

    def decision(self, against: str) -> Decision:
        """What is known now."""
        return Decision(
            against=against,
            test=self._test.name,
            alpha=self._test.alpha,
            look=self.look,
            interval=self._looks.interval(),
            error_pairs=self._error_pairs,
            errors_as_failures=self._pessimist.look.decision,
        )


def _wins(
    pairs: Sequence[tuple[Outcome, Outcome]], counted: Collection[Outcome]
) -> tuple[list[bool], list[bool]]:
    """Which side succeeded in each pair; a pair with an outcome that is not counted is a tie."""
    told = [(a, b) if a in counted and b in counted else (None, None) for a, b in pairs]
    return [a is Outcome.SUCCESS for a, _ in told], [b is Outcome.SUCCESS for _, b in told]
