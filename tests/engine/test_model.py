"""The cycle model, the fits that feed it, and what `hocket plan` prints of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.engine.scheduling.estimates import Latency, monotone, slowed_by
from hocket.engine.scheduling.model import (
    NEAR_BEST,
    ChunkWork,
    best_lanes,
    cohort_sizes,
    cycle_s,
    plan,
    size_to_time,
    target_batch,
    with_stairs,
)
from hocket.workers.median import RunningMedian

works = st.builds(
    ChunkWork,
    cores=st.integers(1, 64),
    execute_s=st.floats(0.001, 2.0),
    concurrency=st.integers(1, 4),
    contention=st.floats(0.0, 1.0),
    max_batch=st.integers(1, 64),
)
affine = st.tuples(st.floats(0.001, 0.5), st.floats(0.0, 0.05))


def latency(batch: int) -> float:
    return 0.075 + 0.0085 * batch


def test_one_cohort_executes_and_is_inferred_in_turn() -> None:
    work = ChunkWork(cores=16, execute_s=0.16)
    assert cycle_s(32, 32, work, latency) == pytest.approx(0.16 * 2 + latency(32))


def test_two_cohorts_overlap_so_the_slower_side_sets_the_pace() -> None:
    work = ChunkWork(cores=16, execute_s=0.16)
    assert cycle_s(16, 32, work, latency) == pytest.approx(2 * latency(16))
    slow_envs = ChunkWork(cores=2, execute_s=0.16)
    assert cycle_s(16, 32, slow_envs, latency) == pytest.approx(32 * 0.16 / 2)


def test_more_inferences_at_once_divide_the_policys_share() -> None:
    one = cycle_s(4, 32, ChunkWork(cores=64, execute_s=0.01), latency)
    four = cycle_s(4, 32, ChunkWork(cores=64, execute_s=0.01, concurrency=4), latency)
    assert four == pytest.approx(one / 4)


def test_sleeping_chunks_do_not_slow_each_other_down() -> None:
    assert ChunkWork(cores=2, execute_s=0.16, contention=0.0).executing_s(32) == pytest.approx(0.16)
    assert ChunkWork(cores=2, execute_s=0.16, contention=1.0).executing_s(32) == pytest.approx(2.56)


def test_two_cohorts_are_the_target_where_the_policy_is_the_bottleneck() -> None:
    assert target_batch(32, ChunkWork(cores=2, execute_s=0.16, contention=0.0), latency) == 16


@given(lanes=st.integers(1, 200), work=works, line=affine)
def test_target_is_within_two_percent_of_every_batch(
    lanes: int, work: ChunkWork, line: tuple[float, float]
) -> None:
    def infer_s(batch: int) -> float:
        return line[0] + line[1] * batch

    target = target_batch(lanes, work, infer_s)
    assert 1 <= target <= min(lanes, work.max_batch)
    best = min(cycle_s(b, lanes, work, infer_s) for b in range(1, min(lanes, work.max_batch) + 1))
    assert cycle_s(target, lanes, work, infer_s) * NEAR_BEST <= best * (1 + 1e-9)
    smaller = [
        b
        for b in range(1, target)
        if cycle_s(b, lanes, work, infer_s) * NEAR_BEST < best * (1 - 1e-9)
    ]
    assert not smaller, "a smaller batch is as good"


@given(lanes=st.integers(1, 3000), max_batch=st.integers(1, 512))
def test_cohort_sizes_are_the_smallest_of_each_number_of_cohorts(
    lanes: int, max_batch: int
) -> None:
    sizes = cohort_sizes(lanes, max_batch)
    expected = {
        max(1, ceil(lanes / ceil(lanes / batch))) for batch in range(1, min(lanes, max_batch) + 1)
    }
    assert sizes == sorted(expected, reverse=True)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.integers(1, 9))
def test_running_median_is_that_of_the_last_window(values: list[float], window: int) -> None:
    median = RunningMedian(window)
    assert median.value is None
    for value in values:
        median.add(value)
    last = sorted(values[-window:])
    assert median.value == last[len(last) // 2]
    assert len(median) == len(last)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=40))
def test_monotone_never_falls_and_keeps_the_mean(points: list[tuple[float, int]]) -> None:
    values, weights = [v for v, _ in points], [float(w) for _, w in points]
    fit = monotone(values, weights)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(fit))
    mean = sum(v * w for v, w in zip(values, weights, strict=True))
    assert sum(v * w for v, w in zip(fit, weights, strict=True)) == pytest.approx(mean)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 5.0)), max_size=60))
def test_latency_never_falls_with_the_batch(measured: list[tuple[int, float]]) -> None:
    fit = Latency({1: 0.1, 8: 0.2})
    for size, seconds in measured:
        fit.observe(size, seconds)
    seconds = [fit.predict(size) for size in range(1, 100)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(seconds))


def test_latency_recovers_a_line_from_noise_with_outliers() -> None:
    rng = random.Random(0)
    fit = Latency({2**k: latency(2**k) for k in range(7)})
    for _ in range(300):
        size = rng.randint(1, 64)
        outlier = 8.0 if rng.random() < 0.05 else 1.0
        fit.observe(size, latency(size) * outlier * rng.lognormvariate(0.0, 0.05))
    for size in (1, 5, 16, 33, 64):
        assert fit.predict(size) == pytest.approx(latency(size), rel=0.1)


def test_one_outlier_at_a_new_size_moves_nothing() -> None:
    fit = Latency({8: 0.14, 16: 0.21})
    fit.observe(12, 3.0)
    assert fit.predict(12) == pytest.approx(0.175)


def test_latency_follows_a_policy_that_became_slower() -> None:
    fit = Latency({8: 0.1, 16: 0.2})
    for _ in range(20):
        fit.observe(8, 0.3)
        fit.observe(16, 0.6)
    assert fit.predict(8) == pytest.approx(0.3, rel=0.02)
    assert fit.predict(16) == pytest.approx(0.6, rel=0.02)


def test_a_policy_that_became_slower_at_one_size_did_so_at_all() -> None:
    fit = Latency({8: 0.1, 16: 0.2, 32: 0.4})
    for _ in range(30):
        fit.observe(8, 0.3)
    assert fit.predict(32) == pytest.approx(1.2, rel=0.02)


def test_one_hiccup_is_soon_forgotten() -> None:
    fit = Latency({8: 0.1, 16: 0.2})
    fit.observe(8, 3.0)
    for _ in range(20):
        fit.observe(8, 0.1)
    assert fit.predict(16) == pytest.approx(0.2, rel=0.02)


def all_timed(latency: Callable[[int], float], largest: int) -> set[int]:
    """The sizes that a warm-up without a limit would know."""
    timed = {size: latency(size) for size in (*(1 << n for n in range(7)), largest)}
    timed = {size: took for size, took in timed.items() if size <= largest}
    while (size := size_to_time(timed)) is not None:
        assert size not in timed
        assert 1 < size < largest
        timed[size] = latency(size)
    return set(timed)


def test_a_warm_up_times_little_where_batches_cost_a_row_more_each() -> None:
    assert all_timed(lambda _: 0.1, 100) == {1, 2, 4, 8, 16, 32, 64, 100}
    assert len(all_timed(lambda rows: 0.005 + 0.01 * rows, 100)) <= 8 + 7


@given(knee=st.integers(8, 56), steep=st.floats(2.0, 12.0))
def test_a_warm_up_finds_a_knee(knee: int, steep: float) -> None:
    def row_s(rows: int) -> float:
        return (0.05 + 0.004 * (rows + steep * max(0, rows - knee))) / rows

    timed = all_timed(lambda rows: rows * row_s(rows), 64)
    assert min(map(row_s, timed)) < 1.08 * min(map(row_s, range(1, 65)))


def test_a_warm_up_looks_first_where_the_policy_may_be_fastest() -> None:
    def took_s(rows: int) -> float:
        return 0.059 + 0.046 * max(0, rows - 15)

    timed = {1 << power: took_s(1 << power) for power in range(8)}
    for _ in range(7):
        size = size_to_time(timed)
        assert size is not None
        timed[size] = took_s(size)
    assert 15 in timed, "the larger a batch, the more its look costs: all went there before"


@given(st.sets(st.integers(2, 63), min_size=1, max_size=3))
@example({2, 32, 34})  # From 33 to 48 rows it rises as from 32 to 33, by chance.
def test_a_warm_up_finds_where_stairs_end(ends: set[int]) -> None:
    stairs = sorted({1, 64, *ends})
    timed = all_timed(lambda n: 0.004 * next(end for end in stairs if end >= n), 64)
    for end in ends:
        step = stairs[stairs.index(end) + 1] / end - 1.0
        if step > 0.5:
            assert end in timed, "one row more costs half as much again"


def test_a_policy_that_pads_says_what_there_is_to_time() -> None:
    timed = {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1, 16: 0.1, 24: 0.2}
    assert size_to_time(timed, (6, 12, 48)) == 12
    assert size_to_time({**timed, 12: 0.1}, (6, 12, 48)) == 6
    assert size_to_time({**timed, 12: 0.1, 6: 0.1}, (6, 12, 48)) is None
    assert size_to_time({1: 0.1}) is None


def test_a_policy_that_pads_takes_as_long_for_one_row_more_as_for_the_next_size() -> None:
    timed = {1: 0.1, 2: 0.1, 4: 0.1, 6: 0.1, 8: 0.2, 12: 0.2, 13: 0.4}
    told = with_stairs(timed, (6, 12, 24))
    assert told == {**timed, 7: 0.2, 13: 0.4}
    assert with_stairs(timed, ()) == timed
    fit = Latency(with_stairs({1: 0.1, 64: 0.2, 128: 0.4}, (64, 128)))
    assert fit.predict(65) == fit.predict(127) == pytest.approx(0.4)


def test_a_stair_that_nobody_expected_is_no_drift() -> None:
    fit = Latency({32: 0.1, 64: 0.2, 128: 0.4})
    for _ in range(3):
        fit.observe(67, 0.4)
    assert fit.predict(64) == pytest.approx(0.2, rel=0.02)
    assert fit.predict(67) == pytest.approx(0.4, rel=0.02)


def test_a_policy_that_slowed_down_has_done_so_at_all_sizes() -> None:
    fit = Latency({4: 0.1, 8: 0.15, 16: 0.25})
    for _ in range(12):
        fit.observe(16, 0.25)
    for _ in range(12):
        fit.observe(16, 0.55)
    assert fit.predict(16) == pytest.approx(0.55, rel=0.05)
    assert fit.predict(8) == pytest.approx(0.33, rel=0.1)


def test_lanes_that_render_are_told_from_a_policy_that_slowed_down() -> None:
    rng = random.Random(0)

    def share(added: float, common: float, count: int = 30) -> float:
        """What is learnt where each lane adds a share, and a policy changed by one."""
        seen: list[tuple[int, int, float]] = []
        for _ in range(count):
            rows, beside = rng.randint(1, 32), rng.randrange(20)
            off = 1.0 + common + added * beside + rng.gauss(0.0, 0.02)
            seen.append((rows, beside, latency(rows) * off))
        return slowed_by(seen, latency, 20)

    assert share(0.1, 0.0) == pytest.approx(0.1, rel=0.05)
    assert share(0.1, 0.5) == pytest.approx(0.1 / 1.5, rel=0.05)
    assert share(0.0, 0.5) == share(0.0, 0.0) == share(0.1, 0.0, count=3) == 0.0


def test_latency_above_the_largest_size_goes_on_rising() -> None:
    fit = Latency({1: 0.1, 11: 0.2})
    assert fit.predict(21) == pytest.approx(0.3)
    assert Latency().predict(7) == 0.0


def test_a_latency_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot take"):
        Latency().observe(0, 1.0)


def test_plan_says_what_limits() -> None:
    work = ChunkWork(cores=4, execute_s=0.16, max_batch=64)
    rows = plan([1, 8, 64], work, latency, actions_per_chunk=16)
    assert [row.limit for row in rows] == ["latency", "cores", "cores"]
    assert rows[-1].chunks_per_s == pytest.approx(4 / 0.16, rel=0.01)
    assert rows[-1].steps_per_s == pytest.approx(16 * rows[-1].chunks_per_s)
    assert rows[-1].cores_busy == pytest.approx(1.0, rel=0.01)
    policy_bound = plan([128], ChunkWork(cores=64, execute_s=0.16), latency, actions_per_chunk=16)[
        0
    ]
    assert (policy_bound.limit, policy_bound.policy_busy) == (
        "policy",
        pytest.approx(1.0, rel=0.01),
    )


def test_best_lanes_is_where_more_lanes_stop_helping() -> None:
    work = ChunkWork(cores=4, execute_s=0.16)
    lanes = best_lanes(work, latency, max_lanes=128)
    before, chosen, more = plan([lanes - 1, lanes, 128], work, latency, actions_per_chunk=1)
    assert before.chunks_per_s < 0.95 * more.chunks_per_s <= chosen.chunks_per_s
    assert best_lanes(work, latency, max_lanes=1) == 1


def test_lanes_that_render_beside_the_policy_are_reckoned_with() -> None:
    alone = ChunkWork(cores=64, execute_s=0.16)
    beside = ChunkWork(cores=64, execute_s=0.16, slowed=0.2)
    for less, more in zip(
        plan([4, 16, 64], beside, latency, actions_per_chunk=1),
        plan([4, 16, 64], alone, latency, actions_per_chunk=1),
        strict=True,
    ):
        assert less.chunks_per_s < 0.95 * more.chunks_per_s
    # Where all go in one batch nobody renders meanwhile.
    assert cycle_s(8, 8, beside, latency) == cycle_s(8, 8, alone, latency)
