"""Paired comparisons agree with scipy, and say no more than the data do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, multinomial, ttest_rel
from scipy.stats import t as student

from hocket.results.comparing import paired, tango
from hocket.results.stats import Grouping

discordant = st.tuples(st.integers(0, 300), st.integers(0, 300))
outcomes = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("xyz")), min_size=1)


@given(discordant)
def test_the_p_is_mcnemars_score_by_students_t(pairs: tuple[int, int]) -> None:
    only_a, only_b = pairs
    n = only_a + only_b + 20
    chi = (only_a - only_b) ** 2 / (only_a + only_b) if only_a + only_b else 0.0
    expected = 2 * student.sf(chi**0.5, n - 1)
    assert tango.p_value(only_a, only_b, n) == pytest.approx(expected, rel=1e-9)


@given(discordant, st.integers(0, 300))
def test_interval_holds_what_was_seen_and_mirrors_when_sides_are_swapped(
    pairs: tuple[int, int], concordant: int
) -> None:
    n = sum(pairs) + concordant
    if not n:
        return
    found, swapped = tango.interval(*pairs, n), tango.interval(*reversed(pairs), n)
    assert -1 <= found.low <= (pairs[0] - pairs[1]) / n <= found.high <= 1
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.floats(-0.95, 0.95))
@settings(max_examples=50)
def test_the_score_is_of_the_likeliest_tables_with_a_difference(
    only_a: int, only_b: int, alike: int, difference: float
) -> None:
    n = only_a + only_b + alike

    def unlikely(lost: float) -> float:
        cells = (lost + difference, lost, 1 - 2 * lost - difference)
        return -sum(
            k * np.log(max(cell, 1e-300))
            for k, cell in zip((only_a, only_b, alike), cells, strict=True)
        )

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    lost = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
    variance = (2 * lost + difference - difference**2) / n
    expected = ((only_a - only_b) / n - difference) / variance**0.5
    one = np.array([1.0])
    found = tango.score(difference * one, only_a * one, only_b * one, n * one)
    assert found[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def tables(n: int) -> tuple[np.ndarray, np.ndarray]:
    only_a, only_b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    some = only_a + only_b <= n
    return only_a[some].astype(float), only_b[some].astype(float)


def test_p_is_below_a_twentieth_where_the_interval_excludes_0_in_all_tables_up_to_40() -> None:
    for n in range(1, 41):
        only_a, only_b = tables(n)
        counts = np.full(len(only_a), float(n))
        t = student.ppf(0.975, n - 1) if n > 1 else np.inf
        bounds = tango.bounds(only_a, only_b, counts, np.full(len(only_a), t))
        p = np.array([tango.p_value(*pair, n) for pair in zip(only_a, only_b, strict=True)])
        assert ((p < 0.05) == ((bounds[:, 0] > 0) | (bounds[:, 1] < 0))).all(), n


@pytest.mark.parametrize("n", [5, 8, 15, 30, 40])
def test_equal_policies_differ_in_at_most_a_twentieth_of_comparisons(n: int) -> None:
    only_a, only_b = tables(n)
    p = np.array([tango.p_value(*pair, n) for pair in zip(only_a, only_b, strict=True)])
    for discordance in np.linspace(0.02, 1, 50):
        cells = (discordance / 2, discordance / 2, 1 - discordance)
        counts = np.stack([only_a, only_b, n - only_a - only_b], axis=1)
        chance = multinomial.pmf(counts, n, cells)
        assert chance[p < 0.05].sum() <= 0.05


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.booleans(), st.booleans())),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_p_and_interval_agree_whatever_the_tasks_and_starts(
    rows: list[tuple[int, int, bool, bool]], independent: bool
) -> None:
    tasks, seeds, a, b = ([row[i] for row in rows] for i in range(4))
    found = paired.compare(
        "success", a, b, [str(task) for task in tasks], seeds=seeds, independent=independent
    )
    for each in (found.overall, *found.tasks):
        if each.interval is not None and each.p_value is not None:
            is_excluded = each.interval.low > 0 or each.interval.high < 0
            assert (each.p_value < 0.05) == is_excluded


@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_tasks_that_share_starts_err_no_more_often_than_they_say(correlation: float) -> None:
    rng, runs, decided = np.random.default_rng(8), 200, 0
    trials = np.arange(200)
    grouping = Grouping.of(trials % 10, trials // 10)
    for _ in range(runs):
        a, b = (
            np.sqrt(correlation) * rng.normal(size=(20, 1))
            + np.sqrt(1 - correlation) * rng.normal(size=(20, 10))
            for _ in range(2)
        )
        won = [(ease.ravel() < 0.25).astype(float) for ease in (a, b)]
        found = paired.rate_difference(*won, grouping)
        decided += found.p_value is not None and found.p_value < 0.05
    assert decided <= 0.095 * runs  # 0.05, and three standard errors; 0.25 if no start is shared


def test_a_single_seed_of_many_tasks_decides_nothing() -> None:
    tasks = [str(task) for task in range(30)]
    found = paired.compare("success", [True] * 30, [False] * 30, tasks, seeds=[7] * 30)
    assert found.verdict == "undecided"
    apart = paired.compare(
        "success", [True] * 30, [False] * 30, tasks, seeds=[7] * 30, independent=True
    )
    assert apart.verdict == "a better"


@given(outcomes)
def test_difference_is_a_less_b_overall_and_by_task(
    rows: list[tuple[bool, bool, str]],
) -> None:
    a, b, tasks = (list(column) for column in zip(*rows, strict=True))
    found = paired.compare("success", a, b, tasks)
    # Each task counts once, however many pairs it has.
    assert found.overall.value == pytest.approx(np.mean([row.value or 0.0 for row in found.tasks]))
    assert found.overall.n == sum(row.n for row in found.tasks) == len(rows)
    assert [row.task for row in found.tasks] == list(dict.fromkeys(tasks))
    assert found.overall.interval is not None
    assert found.overall.value is not None
    assert found.overall.interval.low <= found.overall.value + 1e-9
    assert found.overall.interval.high >= found.overall.value - 1e-9


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1), st.integers(1, 3))
def test_strata_of_one_size_never_widen_the_interval(
    rows: list[tuple[bool, bool]], size: int
) -> None:
    whole = (rows * size)[: len(rows) // size * size or size]
    a, b = (list(column) for column in zip(*whole, strict=True))
    tasks = [str(index // (len(whole) // size)) for index in range(len(whole))]
    fixed = paired.compare("success", a, b, tasks).overall.interval
    pooled = paired.compare("success", a, b, ["one"] * len(a)).overall.interval
    assert fixed is not None
    assert pooled is not None
    assert fixed.high - fixed.low <= pooled.high - pooled.low + 1e-12


SIZES = (20, 20, 20, 2)
"""Pairs of each task, as errors may leave them."""


def test_the_interval_of_uneven_tasks_holds_the_mean_of_their_differences() -> None:
    rng = np.random.default_rng(0)
    p, q = np.array([0.95, 0.9, 0.9, 0.5]), np.array([0.9, 0.9, 0.9, 0.9])
    tasks = [str(index) for index, size in enumerate(SIZES) for _ in range(size)]
    runs, held = 60, 0
    for _ in range(runs):
        a, b = rng.random(62) < np.repeat(p, SIZES), rng.random(62) < np.repeat(q, SIZES)
        found = paired.compare("success", a, b, tasks).overall.interval
        assert found is not None
        held += found.low <= float((p - q).mean()) <= found.high
    assert held >= 0.9 * runs  # 0.62 where every pair counts alike


def test_a_verdict_on_uneven_tasks_is_not_that_of_the_task_with_most_pairs() -> None:
    tasks = ["many"] * 60 + ["few"] * 2
    a, b = [True] * 12 + [False] * 50, [False] * 60 + [True] * 2
    found = paired.compare("success", a, b, tasks)
    assert found.overall.p_value is not None
    assert found.overall.p_value > 0.05
    assert found.overall.value == pytest.approx((0.2 - 1.0) / 2)
    assert found.verdict == "undecided"


def test_clusters_are_a_wider_claim_than_strata_and_say_so() -> None:
    tasks = [task for task in "pqrs" for _ in range(50)]
    a = np.repeat([True, True, True, False], 50)
    b = np.repeat([False, True, True, False], 50)
    strata = paired.compare("success", a, b, tasks)
    clusters = paired.compare("success", a, b, tasks, tasks_as="clusters")
    assert strata.verdict == "a better"
    assert clusters.verdict == "undecided"
    assert clusters.overall.test == "t over tasks"
    assert "n = 4 tasks" in clusters.sentence
    assert "new tasks" in paired.CLAIMS["clusters"]


def test_verdict_names_the_better_side() -> None:
    tasks = ["x"] * 40
    won, lost = [True] * 30 + [False] * 10, [False] * 20 + [True] * 10 + [False] * 10
    assert paired.compare("success", won, lost, tasks).verdict == "a better"
    found = paired.compare("success", lost, won, tasks)
    assert found.verdict == "b better"
    assert found.sentence.startswith("b is better at n = 40 pairs (Tango's score test, p = ")


def test_what_is_undecided_is_said_with_what_it_may_be_and_the_n_that_would_be_needed() -> None:
    a, b = [True] * 3 + [False] * 47, [False] * 2 + [True] + [False] * 47
    found = paired.compare("success", a, b, ["x"] * 50)
    assert found.verdict == "undecided"
    assert found.sentence.startswith("Undecided at n = 50 pairs (Tango's score test, p = ")
    assert "a - b may be anything from -3.8 to +13.8 points" in found.sentence
    assert f"would take about n = {found.needed}" in found.sentence


def test_no_difference_seen_gives_no_needed_n() -> None:
    found = paired.compare("success", [True, False], [True, False], ["x", "x"])
    assert (found.overall.value, found.needed, found.overall.p_value) == (0.0, None, 1.0)


def test_no_pairs_compare_to_nothing() -> None:
    found = paired.compare("success", [], [], [])
    assert (found.overall.value, found.overall.interval, found.overall.p_value) == (None,) * 3
    assert "Nothing to compare" in found.sentence


@pytest.mark.heavy
@pytest.mark.parametrize(("difference", "discordance"), [(0.1, 0.3), (0.05, 0.2), (-0.2, 0.3)])
def test_needed_pairs_give_about_the_power_asked_for(difference: float, discordance: float) -> None:
    n = paired.pairs_needed(difference, discordance, power=0.8)
    assert n is not None
    # Exact power of the test: over the number of discordant pairs, and who wins them.
    share = (discordance + abs(difference)) / (2 * discordance)
    power = 0.0
    for m in range(n + 1):
        wins = np.arange(m + 1)
        rejects = np.array([tango.p_value(int(k), m - int(k), n) <= 0.05 for k in wins])
        power += binom.pmf(m, n, discordance) * binom.pmf(wins, m, share)[rejects].sum()
    assert 0.72 < power < 0.85


def test_needed_pairs_grow_as_the_difference_shrinks() -> None:
    needed = [paired.pairs_needed(d, 0.3) for d in (0.2, 0.1, 0.05)]
    assert needed == sorted(needed, key=lambda n: n or 0)
    assert paired.pairs_needed(0.0, 0.3) is None


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=40))
def test_returns_are_compared_by_the_paired_t_test(rows: list[tuple[float, float]]) -> None:
    a, b = (np.array(column) for column in zip(*rows, strict=True))
    found = paired.compare("return", a, b, ["x"] * len(a))
    if np.std(a - b) < 1e-6:
        return
    expected = ttest_rel(a, b)
    assert found.overall.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.overall.interval is not None
    assert found.overall.interval.low == pytest.approx(
        expected.confidence_interval().low, rel=1e-6, abs=1e-6
    )


def test_returns_without_spread_have_no_p_value() -> None:
    found = paired.compare("return", [2.0] * 5, [1.0] * 5, ["x"] * 5)
    assert (found.overall.value, found.overall.p_value, found.verdict) == (1.0, None, "undecided")


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="one task and one seed each"):
        paired.compare("success", [True], [True, False], ["x"])
    with pytest.raises(ValueError, match="0 or 1"):
        paired.compare("success", [0.5], [1.0], ["x"])
    with pytest.raises(ValueError, match="cannot be"):
        tango.interval(3, 3, 5)
