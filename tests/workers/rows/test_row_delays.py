"""Rows of a batched simulator that go on while the policy thinks, against a plain loop."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hocket
from hocket.core.data import Batch, Trial
from hocket.engine.delays import Delays
from hocket.records.step_rows import load_steps
from hocket.results.report import Report
from support.delayed import Continuing, OneRow, Waves, laws, play
from support.row_toys import RowToyConfig

ENV = "support.delayed:HoldingRows"


def evaluate(policy: Any = None, *, lanes: int = 5, episodes: int = 6, **given: Any) -> Report:
    policy = policy or Waves(size=3)
    return hocket.evaluate(env=ENV, policy=policy, lanes=lanes, episodes=episodes, **given)


def brief(report: Report) -> dict[str, Any]:
    return {e.trial.id: (e.steps, round(e.total_reward, 9), e.chunks) for e in report.episodes}


def expected(delay: str, episodes: int = 6, **how: Any) -> dict[str, Any]:
    found, law = {}, Delays.parse(delay)
    for task in ("walk", "run"):
        env = OneRow(RowToyConfig(), task)
        for seed in range(episodes):
            trial = Trial(ENV, task, seed)
            steps = functools.partial(law.steps, trial, rate=None)
            played = play(env, trial, lambda k, steps=steps: steps(k), size=3, **how)
            found[trial.id] = (len(played.actions), round(played.total, 9), played.decisions)
    return found


def test_rows_without_delay_are_pause_to_the_bit() -> None:
    paused, naive = evaluate(), evaluate(method="naive")
    assert [(e.trial, e.steps, e.total_reward, e.chunks) for e in naive.episodes] == [
        (e.trial, e.steps, e.total_reward, e.chunks) for e in paused.episodes
    ]


@pytest.mark.parametrize(("delay", "first"), [("3", "free"), ("0..5", "held")])
@pytest.mark.parametrize("method", ["naive", "blocking"])
def test_rows_are_the_plain_loop(method: str, delay: str, first: str) -> None:
    report = evaluate(method=method, delay=delay, first_chunk=first)
    assert brief(report) == expected(delay, method=method, first=first)


@given(
    law=laws(6),
    history=st.integers(1, 3),
    lanes=st.integers(1, 9),
)
@settings(max_examples=8, deadline=None)  # an example is a whole run
def test_any_rows_delay_replan_and_history_are_the_plain_loop(
    law: tuple[int, str], history: int, lanes: int
) -> None:
    s, delay = law
    policy = Waves(2 * s, history=history, replan=s, size=3)
    report = evaluate(policy, lanes=lanes, episodes=3, method="naive", delay=delay)
    how = {"s": s, "length": 2 * s, "history": history}
    assert brief(report) == expected(delay, episodes=3, method="naive", **how)


def test_rows_of_a_policy_that_continues_are_the_plain_loop() -> None:
    report = evaluate(Continuing(size=3), method="rtc", delay="1..5")
    assert brief(report) == expected("1..5", method="rtc")


class Slow(Waves):
    """Answers later than rows are done with what is committed, and sooner, by turns."""

    def infer(self, batch: Batch) -> Any:
        time.sleep(0.004 if batch.rows[0].chunk % 2 else 0.0)
        return super().infer(batch)


def test_rows_wait_for_late_answers_and_answers_for_rows() -> None:
    report = evaluate(Slow(size=3), method="naive", delay="1..5")
    assert brief(report) == expected("1..5", method="naive")


@pytest.mark.parametrize("method", ["naive", pytest.param("blocking", marks=pytest.mark.slow)])
def test_rows_in_a_process_give_the_same_results(method: str) -> None:
    report = evaluate(method=method, delay="1..5", runtime="local")
    assert brief(report) == expected("1..5", method=method)


def test_steps_of_rows_are_recorded_with_their_chunks(tmp_path: Path) -> None:
    evaluate(method="blocking", delay=3, out=tmp_path / "run", episodes=2, first_chunk="held")
    table = load_steps(tmp_path / "run").to_pydict()
    env, trial = OneRow(RowToyConfig(), "run"), Trial(ENV, "run", 1)
    played = play(env, trial, lambda _: 3, method="blocking", first="held", size=3)
    rows = [i for i, name in enumerate(table["trial"]) if name == trial.id and table["step"][i]]
    assert [table["chunk"][i] for i in rows] == played.chunks
    assert [table["age"][i] for i in rows] == played.ages
