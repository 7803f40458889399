from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.records.chunks import ChunkRows
from hocket.records.ledger.ledger import Ledger
from hocket.results.timing import SHARES, StepsOverTime, load_timing
from support.recorded_runs import (
    ERROR,
    EXECUTE_S,
    INFER_S,
    OBSERVE_S,
    RESET_S,
    STEPS,
    SUCCESS,
    plan,
    play,
    record_run,
)


def test_every_second_of_a_lane_is_accounted_for(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 5), lambda _: SUCCESS, chunks=2)
    timing = load_timing(tmp_path)
    assert timing is not None
    chunks = 10
    assert (timing.chunks, timing.batches, timing.steps) == (chunks, chunks, chunks * STEPS)
    assert timing.lane_s["stepping"] == pytest.approx(chunks * (EXECUTE_S - OBSERVE_S))
    assert timing.lane_s["observing"] == pytest.approx(chunks * OBSERVE_S)
    assert timing.lane_s["inferring"] == pytest.approx(chunks * INFER_S)
    assert timing.lane_s["resetting"] == pytest.approx(4 * RESET_S), "the first is before it all"
    assert timing.wall_s == pytest.approx(chunks * (INFER_S + EXECUTE_S) + 4 * RESET_S)
    assert sum(timing.lane_s.values()) == pytest.approx(timing.wall_s)
    assert sum(timing.shares.values()) == pytest.approx(1.0)
    assert tuple(timing.shares) == SHARES


def test_run_without_a_chunk_has_no_timing(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 3), lambda _: ERROR)
    assert load_timing(tmp_path) is None


def test_small_run_is_shown_whole(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 3), lambda _: SUCCESS)
    timing = load_timing(tmp_path)
    assert timing is not None
    assert timing.window is not None
    assert timing.window.whole
    assert len(timing.window.chunks["lane"]) == timing.chunks


def test_long_run_shows_a_window_of_bounded_size(tmp_path: Path) -> None:
    record_run(tmp_path, plan(["push"], 40), lambda _: SUCCESS, chunks=10)
    timing = load_timing(tmp_path)
    assert timing is not None
    assert timing.window is not None
    assert not timing.window.whole
    assert 0 < len(timing.window.chunks["lane"]) < timing.chunks / 2


def test_parts_of_a_resumed_run_are_laid_end_to_end(tmp_path: Path) -> None:
    trials = plan(["push"], 6)
    record_run(tmp_path, trials, lambda _: SUCCESS, ended=3)
    one = load_timing(tmp_path)
    with Ledger.open(tmp_path) as ledger:
        ledger.attach(ChunkRows(leg=ledger.leg))
        play(ledger, trials[3:], lambda _: SUCCESS, 2)
    both = load_timing(tmp_path)
    assert one is not None
    assert both is not None
    assert both.wall_s == pytest.approx(2 * one.wall_s)
    assert both.batches == 2 * one.batches, "batches are numbered anew in each part"
    assert both.pace.steps.sum() == both.steps
    assert both.lane_s["resetting"] == pytest.approx(2 * one.lane_s["resetting"])


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), max_size=20), max_size=6)
)
def test_pace_loses_no_step_however_long_the_run(parts: list[list[tuple[float, int]]]) -> None:
    pace, total = StepsOverTime(), 0
    for part in parts:
        times, steps = np.array([t for t, _ in part]), np.array([s for _, s in part], float)
        pace.add(times, steps)
        total += int(steps.sum())
    width, rates = pace.per_second(90)
    assert len(rates) <= 90
    assert (rates * width).sum() == pytest.approx(total)
    assert len(pace.steps) <= 1 << 16
