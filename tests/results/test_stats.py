"""Intervals agree with scipy on random inputs; what is undefined is None."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, t, ttest_1samp

from hocket.results import stats

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
levels = st.floats(0.5, 0.999)
finite = st.floats(-1e6, 1e6)


@given(counts, levels)
def test_wilson_agrees_with_scipy(count: tuple[int, int], level: float) -> None:
    found = stats.wilson(*count, level=level)
    expected = binomtest(*count).proportion_ci(level, method="wilson")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(counts)
def test_wilson_holds_the_rate_and_stays_between_0_and_1(count: tuple[int, int]) -> None:
    found = stats.wilson(*count)
    assert found is not None
    assert 0.0 <= found.low <= count[0] / count[1] <= found.high <= 1.0


@given(st.lists(finite, min_size=2, max_size=50), levels)
def test_mean_and_its_interval_agree_with_scipy(values: list[float], level: float) -> None:
    found = stats.mean(values, level=level)
    assert found.n == len(values)
    assert found.value == pytest.approx(np.mean(values), abs=1e-6)
    if np.std(values) > 1e-3:
        expected = ttest_1samp(values, 0.0).confidence_interval(level)
        assert found.interval is not None
        assert (found.interval.low, found.interval.high) == pytest.approx(
            (expected.low, expected.high), rel=1e-6, abs=1e-6 + 1e-9 * np.abs(values).max()
        )


@given(levels, st.integers(1, 500))
def test_quantiles_of_distributions_agree_with_scipy(level: float, freedom: int) -> None:
    assert stats.normal_quantile(level) == pytest.approx(norm.ppf((1 + level) / 2), abs=1e-9)
    expected = t.ppf((1 + level) / 2, freedom)
    assert stats.t_quantile(freedom, level) == pytest.approx(expected, rel=1e-9)


@given(st.floats(-60, 60), st.integers(1, 200_000))
def test_tails_agree_with_scipy_also_far_out(value: float, freedom: int) -> None:
    expected = 2 * t.sf(abs(value), freedom)
    assert stats.t_tails(value, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_nothing_has_no_rate_no_interval_no_mean() -> None:
    nothing = stats.rate(0, 0)
    assert (nothing.n, nothing.value, nothing.interval) == (0, None, None)
    assert nothing.errors_as_failures is None
    assert stats.mean([]) == stats.Mean(n=0, value=None, std=None, interval=None)


def test_one_value_has_a_mean_but_no_spread() -> None:
    assert stats.mean([3.0]) == stats.Mean(n=1, value=3.0, std=None, interval=None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_mean_with_a_value_that_is_no_number_is_undefined_and_keeps_n(bad: float) -> None:
    found = stats.mean([1.0, bad])
    assert (found.n, found.value, found.interval) == (2, None, None)


def test_errors_stay_out_of_n_and_are_counted_as_failures_beside() -> None:
    found = stats.rate(8, 10, errors=10)
    assert (found.n, found.value, found.errors_as_failures) == (10, 0.8, 0.4)


SIZES = (20, 20, 20, 2)


def test_the_interval_of_uneven_tasks_holds_the_mean_of_their_rates() -> None:
    rng = np.random.default_rng(0)
    rates = np.array([0.95, 0.9, 0.9, 0.5])
    runs, held = 300, 0
    for wins in rng.binomial(SIZES, rates, size=(runs, 4)):
        tasks = [stats.rate(int(won), n) for won, n in zip(wins, SIZES, strict=True)]
        found = stats.rate_of_tasks(tasks)
        assert found.interval is not None
        assert found.value == pytest.approx(np.mean(wins / SIZES))
        held += found.interval.low <= rates.mean() <= found.interval.high
    assert held >= 0.93 * runs  # 0.58 where every episode counts alike


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_tasks_of_one_size_have_the_interval_of_all_episodes_together(wins: list[int]) -> None:
    together = stats.rate(sum(wins), 9 * len(wins))
    assert stats.rate_of_tasks([stats.rate(won, 9) for won in wins]) == together


@given(st.lists(counts, min_size=2, max_size=6))
def test_the_interval_of_tasks_holds_their_mean_and_stays_between_0_and_1(
    tasks: list[tuple[int, int]],
) -> None:
    found = stats.rate_of_tasks([stats.rate(*task) for task in tasks])
    assert found.interval is not None
    assert found.value is not None
    assert 0.0 <= found.interval.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.interval.high <= 1.0


def test_a_task_without_an_episode_does_not_count_yet() -> None:
    found = stats.rate_of_tasks([stats.rate(3, 4), stats.rate(0, 0), stats.rate(0, 0, errors=2)])
    assert (found.n, found.value, found.errors) == (4, 0.75, 2)
    assert found.errors_as_failures == pytest.approx((0.75 + 0.0) / 2)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 5)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        stats.wilson(successes, n)


def test_a_level_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        stats.wilson(1, 2, level=1.5)


def test_what_every_report_needs_imports_no_scipy() -> None:
    code = (
        "import sys, hocket.results.stats, hocket.results.comparing.paired;"
        "import hocket.results.comparing.sequential, hocket.results.report;"
        "hocket.results.stats.rate(3, 5);"
        "hocket.results.stats.mean([1.0, 2.0, 4.0]);"
        "sys.exit(any(name.split('.')[0] in ('scipy', 'rich', 'torch') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0
