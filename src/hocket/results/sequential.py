"""Tests that may be looked at after every pair, and stop a comparison as soon as it is decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.core.data import Array
from hocket.errors import MissingExtraError
from hocket.results.paired import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known after `pairs` complete pairs."""

    pairs: int
    only_a: int
    only_b: int
    decision: Verdict
    p_value: float | None = None
    """Valid whenever one stops; None where the test has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSequentialTest:
    """A test martingale on discordant pairs: errs with probability `alpha` at most, over all looks.

    Bet on a: with one unit, and odds as if a won a share q > 1/2 of the discordant pairs, every
    such pair that a wins multiplies the capital by 2q, every other by 2(1 - q). If a is not
    better, no such bet grows on average, nor does their mixture over q (Beta(prior, prior), cut
    to q > 1/2), so that it ever exceeds 2/alpha with probability alpha/2 at most (Ville). The
    same bet on b has the other half of alpha.

    With one look per pair, "not better" means: on no task. Where tasks differ and only their mean
    matters, plan trials in rounds of one per task and set `pairs_per_round`: looks are then at
    whole rounds, at the end of which the product of bets has a mean of at most 1 whenever the
    tasks' mean difference is not above 0 (numbers whose mean is at most 1 multiply to at most 1).
    """

    alpha: float = 0.05
    pairs_per_round: int = 1
    prior: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1 or self.pairs_per_round < 1 or self.prior <= 0:
            raise ValueError(f"{self} is no test: alpha in (0, 1), a round of one pair or more.")

    def run(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Look:
        """Look at pairs in planned order: the first look that decides, or else the last."""
        won_a, won_b = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
        if won_a.ndim != 1 or won_a.shape != won_b.shape:
            raise ValueError(f"Pairs need one value each; got {won_a.shape} and {won_b.shape}.")
        rounds = slice(self.pairs_per_round - 1, None, self.pairs_per_round)
        only_a = np.cumsum(won_a & ~won_b)[rounds]
        only_b = np.cumsum(won_b & ~won_a)[rounds]
        if not len(only_a):
            return Look(pairs=0, only_a=0, only_b=0, decision="undecided", p_value=1.0)
        for_a, for_b = self.evidence(only_a, only_b), self.evidence(only_b, only_a)
        peak = np.maximum.accumulate(np.maximum(for_a, for_b))
        crossed = peak >= self.threshold
        at = int(np.argmax(crossed)) if crossed.any() else len(only_a) - 1
        decision: Verdict = "undecided"
        if crossed[at]:
            decision = "a better" if for_a[at] > for_b[at] else "b better"
        return Look(
            pairs=(at + 1) * self.pairs_per_round,
            only_a=int(only_a[at]),
            only_b=int(only_b[at]),
            decision=decision,
            p_value=min(1.0, 2.0 * math.exp(-float(peak[at]))),
        )

    @property
    def threshold(self) -> float:
        """The log of the capital that decides."""
        return math.log(2 / self.alpha)

    def evidence(self, wins: Array, losses: Array) -> Array:
        """Log of the capital of the bet on the side with `wins`, elementwise."""
        from scipy import special

        up, down = wins + self.prior, losses + self.prior
        mixture = special.betaln(up, down) - special.betaln(self.prior, self.prior)
        with np.errstate(divide="ignore"):  # a hopeless bet has nothing left: log 0
            upper_half = np.log(special.betainc(down, up, 0.5))
        return np.asarray((wins + losses + 1) * math.log(2.0) + mixture + upper_half)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSequentialTest:
    """The unpaired STEP test (Snyder et al. 2025), from the package `sequentialized-barnard-tests`.

    It is for runs whose trials are independent rather than paired: it makes no use of pairing.
    Decides between both directions with at most `alpha` in all, within `cap` trials a side. That
    package brings tables for alpha 0.1 at caps 200 and 500; for others it computes one, once,
    which takes minutes. Mind its licence (CC BY-NC): hocket neither contains nor needs it.
    """

    alpha: float = 0.1
    cap: int = 200
    seed: int = 0
    """STEP draws lots at the edge of its decision region."""

    def run(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Look:
        """Look at trials in planned order: the first look that decides, or else the last."""
        package = _step_package()
        test = package.MirroredStepTest(
            package.Hypothesis.P0MoreThanP1,
            self.cap,
            self.alpha,
            random_seed=self.seed,
            inference_mode="ranking",
        )
        won_a, won_b = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
        if won_a.ndim != 1 or won_a.shape != won_b.shape:
            raise ValueError(f"Both sides need as many; got {won_a.shape} and {won_b.shape}.")
        decision: Verdict = "undecided"
        pairs = 0
        for left, right in zip(won_a[: self.cap], won_b[: self.cap], strict=True):
            pairs += 1
            found = test.step(int(left), int(right)).decision
            if found != package.Decision.FailToDecide:
                above = found == package.Decision.AcceptAlternative
                decision = "a better" if above else "b better"
                break
        return Look(
            pairs=pairs,
            only_a=int((won_a & ~won_b)[:pairs].sum()),
            only_b=int((won_b & ~won_a)[:pairs].sum()),
            decision=decision,
        )


def _step_package() -> Any:
    try:
        import sequentialized_barnard_tests
    except ImportError as error:
        raise MissingExtraError(
            "The STEP test is in a package of its own: pip install sequentialized-barnard-tests. "
            "The paired test needs nothing more."
        ) from error
    return sequentialized_barnard_tests
