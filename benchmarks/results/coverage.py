"""Do the intervals cover, and does the sequential test keep its word?

    python benchmarks/results/coverage.py [--json FILE] [--pairs-of-runs 10000]

At each stated setting (pairs n, true rates of a and b, correlation of a pair's two outcomes) runs
are simulated, and hocket's own functions judge them:

- `difference`: share of the simulated runs whose 95 % interval holds the true difference. At
  least 93.5 %; more is conservative, which small n makes unavoidable.
- All tables: over all tables of n pairs, n up to 40, whether p is below 0.05 where the interval
  excludes 0 and nowhere else; exactly, over true rates in steps of 0.05: the mean and the least
  coverage, and the largest share of equal policies that are found to differ: at most 6 %, since a
  score test keeps its 5 % over all n and not at each (5.8 % at n of 34).
- Shared starts: ten tasks on 10 to 50 seeds, whose trials of one seed hang together: how often the
  intervals of a's rate and of the difference hold the truth. 93 to 97 %.
- `rate`: the same for Wilson's interval of a's rate, computed exactly: no simulation is needed.
- Below, the difference for ten tasks of different difficulty as fixed strata.
- `false`: share of the runs in which the sequential test, looking after every one of 500 pairs,
  ever declares a winner where there is none (both have a's rate). At most alpha = 5 %.
- `found`, `pairs`: how often it decides rightly on the true rates within 500 pairs, and the median
  number of pairs until then, for information.

Then what hangs together (`scenarios.py`), for both tests: bets on pairs, and bets on rounds:

- Correlated starts: ten tasks whose trials of one seed share their luck. Bets on rounds err in at
  most alpha; bets on pairs do where starts are independent, and so does Wilson's interval cover.
- Uneven n: the overall intervals hold the mean of the tasks in 93.5 % at least.
- Informative errors: failures of one side that end as errors, which count as ties.
- After stopping: the interval by bets holds the truth in 95 % at least; the ordinary one need not.

Exit status 1 if any bound is missed; scenarios may miss theirs by three standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom, multinomial

from hocket.core.data import Array
from hocket.results import stats
from hocket.results.comparing import paired, tango
from hocket.results.comparing.sequential import PairedSequentialTest
from hocket.results.stats import Grouping
from scenarios import (
    STAKES,
    UNEVEN,
    Together,
    after_stopping,
    correlated_starts,
    informative_errors,
    rates_of_tasks,
    shared_starts,
    uneven_tasks,
)

LEVEL, BOUND, ALPHA, HORIZON = 0.95, 0.935, 0.05, 500
MOST_BY_SCORE = 0.06
"""The share of equal policies that a score test may find to differ, at any n up to 40."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Pairs in a run, success rates of a and b, correlation of the two outcomes of a pair."""

    n: int
    a: float
    b: float
    correlation: float

    def cells(self) -> tuple[float, float, float, float]:
        """Probabilities of both, only a, only b, neither."""
        spread = math.sqrt(self.a * (1 - self.a) * self.b * (1 - self.b))
        both = self.a * self.b + self.correlation * spread
        if both > min(self.a, self.b):
            raise ValueError(f"{self} cannot be: rates this far apart are less correlated.")
        return both, self.a - both, self.b - both, 1 - self.a - self.b + both


SETTINGS = (
    Setting(10, 0.5, 0.5, 0.0),
    Setting(20, 0.9, 0.9, 0.3),
    Setting(20, 0.8, 0.6, 0.3),
    Setting(50, 0.95, 0.95, 0.0),
    Setting(50, 0.9, 0.8, 0.5),
    Setting(50, 0.5, 0.5, 0.8),
    Setting(100, 0.97, 0.9, 0.2),
    Setting(100, 0.7, 0.6, 0.6),
    Setting(200, 0.5, 0.4, 0.3),
    Setting(200, 0.95, 0.93, 0.7),
    Setting(500, 0.85, 0.85, 0.5),
    Setting(500, 0.6, 0.55, 0.0),
)
STRATA = (2, 5, 20, 50)
"""Trials per task, of ten tasks whose rates run from 0.1 to 0.98 for a, the other way for b."""


def interval_coverage(setting: Setting, runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Share of simulated runs whose intervals hold the truth."""
    tables = rng.multinomial(setting.n, setting.cells(), size=runs)
    bounds = bounds_of(tables[:, 1], tables[:, 2], setting.n)
    truth = setting.a - setting.b
    rate = 0.0
    for wins in range(setting.n + 1):
        interval = stats.wilson(wins, setting.n, level=LEVEL)
        if interval is not None and interval.low <= setting.a <= interval.high:
            rate += float(binom.pmf(wins, setting.n, setting.a))
    held = (bounds[:, 0] <= truth) & (truth <= bounds[:, 1])
    return {"rate": rate, "difference": float(held.mean())}


def bounds_of(only_a: Array, only_b: Array, n: int) -> Array:
    """Return bounds of the difference for many tables of n pairs each."""
    t = stats.t_quantile(n - 1, LEVEL) if n > 1 else math.inf
    one = np.ones(len(only_a))
    return tango.bounds(only_a * one, only_b * one, n * one, t * one)


def all_tables(n: int) -> dict[str, float]:
    """Whether p and interval agree over all tables of n pairs; and exactly, over true rates in
    steps, the mean and the least coverage, and how often equal policies are found to differ."""
    only_a, only_b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    some = only_a + only_b <= n
    only_a, only_b = only_a[some], only_b[some]
    bounds = bounds_of(only_a, only_b, n)
    p = np.array([tango.p_value(*pair, n) for pair in zip(only_a, only_b, strict=True)])
    excluded = (bounds[:, 0] > 0) | (bounds[:, 1] < 0)
    counts = np.stack([only_a, only_b, n - only_a - only_b], axis=1)
    covered, equal = [], 0.0
    for discordance in np.arange(1, 21) / 20:
        for difference in np.arange(0, discordance + 1e-9, 0.05):
            more = (discordance + difference) / 2
            cells = (more, max(0.0, discordance - more), max(0.0, 1 - discordance))
            chance = multinomial.pmf(counts, n, np.array(cells) / sum(cells))
            held = (bounds[:, 0] <= difference + 1e-9) & (difference - 1e-9 <= bounds[:, 1])
            covered.append(float(chance[held].sum()))
            if difference == 0:
                equal = max(equal, float(chance[p < 1 - LEVEL].sum()))
    return {
        "disagree": float(((p < 1 - LEVEL) != excluded).sum()),
        "mean": float(np.mean(covered)),
        "least": min(covered),
        "equal": equal,
    }


def strata_coverage(per_task: int, runs: int, rng: np.random.Generator) -> dict[str, float]:
    """The same for ten tasks as fixed strata: the overall difference."""
    rates = np.linspace(0.1, 0.98, 10)
    shifted = 0.9 * rates[::-1]
    tasks = [Setting(per_task, p, q, 0.0) for p, q in zip(rates, shifted, strict=True)]
    held = width = plain = 0.0
    for _ in range(runs):
        kinds = np.concatenate([rng.choice(4, per_task, p=task.cells()) for task in tasks])
        a, b = (kinds < 2).astype(np.float64), (kinds % 2 == 0).astype(np.float64)
        alone = np.arange(len(a))
        task = Grouping.of(alone // per_task, alone)
        found = paired.rate_difference(a, b, task, level=LEVEL).interval
        pooled = paired.rate_difference(a, b, Grouping.of(0 * alone, alone), level=LEVEL).interval
        assert found is not None
        assert pooled is not None
        held += found.low <= float((rates - shifted).mean()) <= found.high
        width += found.high - found.low
        plain += pooled.high - pooled.low
    return {"difference": held / runs, "width": width / plain}


def first_decisions(test: PairedSequentialTest, cells: tuple[float, ...], runs: int,
                    rng: np.random.Generator) -> tuple[Array, Array]:  # fmt: skip
    """Which side each run declares (1: a, -1: b, 0: none), and after how many pairs."""
    counts = np.arange(HORIZON + 1)
    evidence = test.evidence(counts[:, None], counts[None, :])
    for_a = evidence >= test.threshold
    table = for_a.astype(np.int8) - for_a.T.astype(np.int8)
    draws = rng.random((runs, HORIZON))
    only_a = np.cumsum(draws < cells[1], axis=1, dtype=np.int16)
    only_b = np.cumsum(draws > 1 - cells[2], axis=1, dtype=np.int16)
    said = table[only_a, only_b][:, test.pairs_per_round - 1 :: test.pairs_per_round]
    first = np.argmax(said != 0, axis=1)
    return said[np.arange(runs), first], (first + 1) * test.pairs_per_round


def sequential_errors(setting: Setting, runs: int, rng: np.random.Generator) -> dict[str, float]:
    """False positives where there is no difference, and what it finds where there is one."""
    test = PairedSequentialTest(alpha=ALPHA)
    null = Setting(setting.n, setting.a, setting.a, setting.correlation)
    said, _ = first_decisions(test, null.cells(), runs, rng)
    result = {"false": float((said != 0).mean())}
    if setting.a != setting.b:
        right = 1 if setting.a > setting.b else -1
        said, pairs = first_decisions(test, setting.cells(), runs, rng)
        result["found"] = float((said == right).mean())
        if (said != 0).mean() > 0.5:
            result["pairs"] = float(np.median(np.where(said != 0, pairs, HORIZON)))
    return result


def opposed_tasks_error(runs: int, rng: np.random.Generator) -> float:
    """False positives at whole rounds where two tasks differ, in opposite directions."""
    test = PairedSequentialTest(alpha=ALPHA, pairs_per_round=2, bets_on="pairs")
    draws = rng.random((runs, HORIZON))
    odd = np.arange(HORIZON) % 2 == 1
    false = 0
    for row in draws:
        a = row < np.where(odd, 0.2, 0.8)
        false += test.run(a, ~a).decision != "undecided"
    return false / runs


Judge = Callable[..., None]


def print_scenarios(runs: int, rng: np.random.Generator, strict: Judge) -> list[dict[str, Any]]:
    """Play every scenario, print its table and judge it; gives the figures."""
    rows: list[dict[str, Any]] = []

    def judge(name: str, value: float, *, at_least: float = 0.0, at_most: float = 1.0) -> None:
        low, high = (3 * math.sqrt(x * (1 - x) / runs) for x in (at_least, at_most))
        strict(name, value, at_least=at_least - low, at_most=at_most + high)

    print("\nCorrelated starts, ten tasks, 50 rounds (decided; median rounds)")
    print("   a     b  corr     rate   bets on pairs       bets on rounds")
    for a, b in ((0.6, 0.6), (0.75, 0.6)):
        for correlation in (0.0, 0.1, 0.3):
            case = Together(a=a, b=b, correlation=correlation)
            found = correlated_starts(case, runs, rng)
            rows.append({"scenario": "correlated", **asdict(case), **found})
            cells = [
                f"{100 * found[f'{on}_decided']:6.2f}%  {found[f'{on}_rounds'] or math.nan:6.0f}"
                for on in STAKES
            ]
            print(f"{a:.2f}  {b:.2f}  {correlation:4.1f}  {100 * found['rate']:6.2f}%   "
                  f"{'     '.join(cells)}")  # fmt: skip
            if a == b:
                judge(f"bets on rounds at {case}", found["rounds_decided"], at_most=ALPHA)
                if correlation == 0:
                    judge(f"bets on pairs at {case}", found["pairs_decided"], at_most=ALPHA)
    print(
        "\nShared starts, ten tasks: how often intervals hold the truth (without regard to seeds)"
    )
    print("   a     b  corr  seeds     rate            difference")
    for a, b in ((0.6, 0.6), (0.75, 0.6)):
        for correlation in (0.0, 0.1, 0.3):
            for seeds in (10, 20, 50):
                case = Together(a=a, b=b, correlation=correlation, rounds=seeds)
                found = shared_starts(case, runs, rng)
                rows.append({"scenario": "shared", **asdict(case), **found})
                print(f"{a:.2f}  {b:.2f}  {correlation:4.1f}  {seeds:5d}   "
                      f"{100 * found['rate']:6.2f}% {100 * found['plain_rate']:6.2f}%   "
                      f"{100 * found['difference']:6.2f}% "
                      f"{100 * found['plain_difference']:6.2f}%")  # fmt: skip
                for what in ("rate", "difference"):
                    judge(f"{what} at {case}", found[what], at_least=0.93, at_most=0.97)
    print("\nUneven n: the lowest share over six sets of rates (pooled: every trial counts alike)")
    print("   n                  rate  pooled  difference  pooled  width of rate")
    for sizes in UNEVEN:
        each = [uneven_tasks(sizes, rates, runs, rng) for rates in rates_of_tasks(len(sizes))]
        low = {name: min(one[name] for one in each) for name in each[0]}
        low["width"] = float(np.mean([one["width"] for one in each]))
        rows.append({"scenario": "uneven", "n": list(sizes), **low})
        name = ", ".join(map(str, sizes)) if len(sizes) < 5 else f"9 of {sizes[0]}, {sizes[-1]}"
        print(f"   {name:15} {100 * low['rate']:6.2f}% {100 * low['pooled_rate']:6.2f}%     "
              f"{100 * low['difference']:6.2f}% {100 * low['pooled_difference']:6.2f}%  "
              f"{low['width']:5.2f}")  # fmt: skip
        for what in ("rate", "difference"):
            judge(f"{what} at n of {sizes}", low[what], at_least=BOUND)
    print("\nInformative errors, equal policies: a share of a's failures ends as errors")
    print("   share  decides for a  and stands with errors as failures")
    for share in (0.0, 0.1, 0.2):
        found = informative_errors(share, runs, rng)
        rows.append({"scenario": "errors", "share": share, **found})
        judge(f"errors as failures at {share}", found["stands"], at_most=ALPHA)
        print(f"   {share:5.2f}        {100 * found['for_a']:6.2f}%  {100 * found['stands']:6.2f}%")
    print("\nAfter stopping, ten tasks with independent starts (share of intervals with the truth)")
    print("   a     b  bets on   found  ordinary    bets   ordinary p <= alpha  p <= alpha")
    for a, b in ((0.6, 0.6), (0.65, 0.6), (0.75, 0.6)):
        for bets_on in STAKES:
            case = Together(a=a, b=b, correlation=0.0)
            found = after_stopping(case, bets_on, runs, rng)
            rows.append({"scenario": "stopped", **asdict(case), "bets_on": bets_on, **found})
            judge(f"interval by bets on {bets_on} at {case}", found["bets"], at_least=LEVEL)
            print(f"{a:.2f}  {b:.2f}  {bets_on:7}  {found['found'] or math.nan:+.3f}   "
                  f"{100 * found['ordinary']:6.2f}% {100 * found['bets']:6.2f}%              "
                  f"{100 * found['ordinary_p']:6.2f}%     {100 * found['p']:6.2f}%")  # fmt: skip
    return rows


def main() -> int:
    """Simulate, print the table, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--pairs-of-runs", type=int, default=10_000)
    parser.add_argument("--scenario-runs", type=int, default=1_000, help="for what hangs together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, runs = np.random.default_rng(options.seed), options.pairs_of_runs
    began, missed, rows = time.perf_counter(), [], []

    def judge(name: str, value: float, *, at_least: float = 0.0, at_most: float = 1.0) -> None:
        if not at_least <= value <= at_most:
            missed.append(f"{name}: {value:.4f} is not within [{at_least}, {at_most}]")

    print("   n     a     b  corr     rate  difference   false   found  pairs")
    for setting in SETTINGS:
        row = {**interval_coverage(setting, runs, rng), **sequential_errors(setting, runs, rng)}
        rows.append({**asdict(setting), **row})
        judge(f"rate at {setting}", row["rate"], at_least=BOUND)
        judge(f"difference at {setting}", row["difference"], at_least=BOUND)
        judge(f"sequential at {setting}", row["false"], at_most=ALPHA)
        right = f"{100 * row['found']:6.1f}%" if "found" in row else "      -"
        pairs = f"{row['pairs']:5.0f}" if "pairs" in row else "    -"
        print(
            f"{setting.n:4d}  {setting.a:.2f}  {setting.b:.2f}  {setting.correlation:4.1f}  "
            f"{100 * row['rate']:6.2f}%     {100 * row['difference']:6.2f}% "
            f"{100 * row['false']:6.2f}% {right}  {pairs}"
        )
    print("\nTen tasks as strata (width: against the interval that ignores tasks)")
    print("   n  difference  width")
    strata = []
    for per_task in STRATA:
        found = strata_coverage(per_task, runs, rng)
        strata.append({"n": float(10 * per_task), **found})
        judge(
            f"difference on ten tasks, {per_task} trials each", found["difference"], at_least=BOUND
        )
        print(f"{10 * per_task:4d}     {100 * found['difference']:6.2f}%  {found['width']:5.2f}")
    print("\nAll tables of n pairs")
    print("   n  disagree    mean   least  equal policies differ")
    tables = []
    for n in range(1, 41):
        found = all_tables(n)
        tables.append({"n": n, **found})
        judge(f"tables of {n} whose p and interval disagree", found["disagree"], at_most=0)
        judge(f"equal policies at n of {n}", found["equal"], at_most=MOST_BY_SCORE)
        if n in (5, 10, 15, 20, 30, 40):
            print(f"{n:4d}  {found['disagree']:8.0f}  {100 * found['mean']:5.1f}%  "
                  f"{100 * found['least']:5.1f}%  {100 * found['equal']:5.1f}%")  # fmt: skip
    opposed = opposed_tasks_error(runs, rng)
    judge("sequential on opposed tasks, whole rounds", opposed, at_most=ALPHA)
    print(f"\nSequential, two opposed tasks, looks at whole rounds: {100 * opposed:.2f}% false")
    scenarios = print_scenarios(options.scenario_runs, rng, judge)
    seconds = time.perf_counter() - began
    print(f"{runs:,} runs a setting, {seconds:.1f} s; intervals at 95 % may be conservative")
    if options.json:
        figures = {
            "runs": runs, "seconds": seconds, "settings": rows, "strata": strata, "tables": tables,
            "opposed_tasks_false": opposed, "scenarios": scenarios, "missed": missed,
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
