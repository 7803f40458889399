"""Pairs of runs in which something hangs together: starts, errors, the moment of stopping.

Each function plays many pairs of runs with hocket's own tests and intervals, and gives figures by
name; shares are of the pairs of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from hocket.core.data import Array
from hocket.results import stats
from hocket.results.comparing import paired, tango
from hocket.results.comparing.sequential import PairedSequentialTest, Stake
from hocket.results.scores import rate_of_trials
from hocket.results.stats import Grouping

TASKS, ROUNDS, LEVEL, ALPHA = 10, 50, 0.95, 0.05
STAKES: tuple[Stake, ...] = ("pairs", "rounds")
Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Rounds of ten tasks in which the trials of one policy share part of their luck."""

    a: float
    b: float
    correlation: float
    """Of the latent ease of two tasks' trials in one round, for the same policy."""

    rounds: int = ROUNDS

    def play(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Successes `[rounds, tasks]` of both."""
        won = []
        for rate in (self.a, self.b):
            shared, own = rng.normal(size=(self.rounds, 1)), rng.normal(size=(self.rounds, TASKS))
            ease = np.sqrt(self.correlation) * shared + np.sqrt(1 - self.correlation) * own
            won.append(ease < norm.ppf(rate))
        return won[0], won[1]


def shared_starts(case: Together, runs: int, rng: np.random.Generator) -> dict[str, float]:
    """The share of runs whose intervals hold a's rate and the difference, by what hocket reports;
    beside them the shares if no start were shared."""
    held = dict.fromkeys(("rate", "plain_rate", "difference", "plain_difference"), 0)
    trials = np.arange(case.rounds * TASKS)
    for _ in range(runs):
        a, b = (won.ravel().astype(float) for won in case.play(rng))
        for name, independent in (("", False), ("plain_", True)):
            grouping = Grouping.of(trials % TASKS, trials // TASKS, independent=independent)
            rate = rate_of_trials(a, grouping.tasks, trials // TASKS, independent=independent)
            difference = paired.rate_difference(a, b, grouping, level=LEVEL)
            for what, interval, truth in (
                ("rate", rate.interval, case.a),
                ("difference", difference.interval, case.a - case.b),
            ):
                assert interval is not None
                held[name + what] += interval.low <= truth <= interval.high
    return {name: count / runs for name, count in held.items()}


def correlated_starts(case: Together, runs: int, rng: np.random.Generator) -> Figures:
    """How often each test decides within 50 rounds, and after how many in the median; and how
    often Wilson's interval over all 500 trials holds a's rate."""
    held, rounds = 0, {bets_on: [] for bets_on in STAKES}
    for _ in range(runs):
        a, b = case.play(rng)
        interval = stats.wilson(int(a.sum()), a.size, level=LEVEL)
        assert interval is not None
        held += interval.low <= case.a <= interval.high
        for bets_on in STAKES:
            test = PairedSequentialTest(alpha=ALPHA, pairs_per_round=TASKS, bets_on=bets_on)
            look = test.run(a.ravel(), b.ravel())
            rounds[bets_on].append(look.number if look.decision != "undecided" else np.inf)
    figures = {"rate": held / runs}
    for bets_on, needed in rounds.items():
        figures[f"{bets_on}_decided"] = float(np.isfinite(needed).mean())
        middle = float(np.median(needed))
        figures[f"{bets_on}_rounds"] = middle if np.isfinite(middle) else None
    return figures


def uneven_tasks(
    sizes: Sequence[int], rates: Sequence[Array], runs: int, rng: np.random.Generator
) -> dict[str, float]:
    """The share of runs whose overall intervals hold the mean of the tasks' rates of a, and of
    their differences; beside them the shares with every trial counted alike."""
    n, (a, b) = np.array(sizes), (np.asarray(each, float) for each in rates)
    rows = np.split(np.arange(n.sum()), np.cumsum(n)[:-1])
    held = dict.fromkeys(("rate", "difference", "pooled_rate", "pooled_difference"), 0)
    width = 0.0
    trials = np.arange(n.sum())
    grouping, pooled = (
        Grouping.of(np.repeat(np.arange(len(n)), n), trials),
        Grouping.of(0 * trials, trials),
    )
    for _ in range(runs):
        won_a, won_b = (rng.random(n.sum()) < np.repeat(each, n) for each in (a, b))
        wins = [int(won_a[some].sum()) for some in rows]
        tasks = [stats.rate(won, size) for won, size in zip(wins, sizes, strict=True)]
        left, right = won_a.astype(float), won_b.astype(float)
        found = {
            "rate": (stats.rate_of_tasks(tasks, level=LEVEL).interval, a.mean()),
            "pooled_rate": (stats.wilson(sum(wins), int(n.sum()), level=LEVEL), a.mean()),
            "difference": (
                paired.rate_interval(left - right, grouping, LEVEL),
                (a - b).mean(),
            ),
            "pooled_difference": (
                paired.rate_interval(left - right, pooled, LEVEL),
                (a - b).mean(),
            ),
        }
        for name, (interval, truth) in found.items():
            assert interval is not None
            held[name] += interval.low <= truth + 1e-12 and truth - 1e-12 <= interval.high
        interval = found["rate"][0]
        assert interval is not None
        width += interval.high - interval.low
    return {**{name: count / runs for name, count in held.items()}, "width": width / runs}


def informative_errors(share: float, runs: int, rng: np.random.Generator) -> Figures:
    """Two equal policies on 300 pairs of one task; a `share` of a's failures ends as an error. How
    often errors as ties decide for a, and in how many of those errors as failures do not."""
    decided = stands = 0
    for _ in range(runs):
        a, b = rng.random(300) < 0.6, rng.random(300) < 0.6
        is_error = ~a & (rng.random(300) < share)
        test = PairedSequentialTest(alpha=ALPHA)
        if test.run(a & ~is_error, b & ~is_error).decision == "a better":
            decided += 1
            stands += test.run(a, b).decision == "a better"
    return {"for_a": decided / runs, "stands": stands / runs}


def after_stopping(case: Together, bets_on: Stake, runs: int, rng: np.random.Generator) -> Figures:
    """Runs that stop when they are decided: the mean of the differences found by those that were;
    the share of all intervals that hold the truth, of the ordinary kind and by bets; and the share
    of p up to alpha, of the ordinary kind and the look's own."""
    found, held, bets, below, valid = [], 0, 0, 0, 0
    truth = case.a - case.b
    for _ in range(runs):
        looks = PairedSequentialTest(alpha=ALPHA, pairs_per_round=TASKS, bets_on=bets_on).begin()
        a, b = case.play(rng)
        for left, right in zip(a, b, strict=True):
            if looks.see(left, right).decision != "undecided":
                break
        pairs = looks.look.pairs
        only_a, only_b = looks.look.only_a, looks.look.only_b
        if looks.look.decision != "undecided":
            found.append((only_a - only_b) / pairs)
        ordinary, own = tango.interval(only_a, only_b, pairs, level=LEVEL), looks.interval()
        assert own is not None
        held += ordinary.low <= truth <= ordinary.high
        bets += own.low <= truth <= own.high
        below += tango.p_value(only_a, only_b, pairs) <= ALPHA
        valid += (looks.look.p_value or 0.0) <= ALPHA
    return {
        "found": float(np.mean(found)) if found else None,
        "ordinary": held / runs,
        "bets": bets / runs,
        "ordinary_p": below / runs,
        "p": valid / runs,
    }


UNEVEN: tuple[tuple[int, ...], ...] = (
    (20, 20, 20, 2),
    (20, 20, 19, 18),
    (10, 10, 10, 1),
    (50, 50, 50, 5),
    (100, 100, 3),
    (1, 2, 3, 4),
    (20,) * 9 + (10,),
)


def rates_of_tasks(count: int) -> Iterator[tuple[Array, Array]]:
    """Pairs of rates for so many tasks: alike, in order of difficulty, and with an odd one out."""
    last = np.arange(count) == count - 1
    yield np.full(count, 0.9), np.full(count, 0.8)
    yield np.full(count, 0.97), np.full(count, 0.97)
    yield np.linspace(0.1, 0.98, count), np.linspace(0.9, 0.3, count)
    yield np.where(last, 0.5, 0.95), np.full(count, 0.9)
    yield np.where(last, 0.5, 1.0), np.where(last, 0.3, 1.0)
    yield np.where(last, 0.95, 0.5), np.full(count, 0.5)
