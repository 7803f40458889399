"""Lanes that go on while the policy thinks, against a plain loop with one env."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hocket
from hocket.core.data import Batch, Trial
from hocket.core.events import Event, RunEnded
from hocket.engine.delays import Delays
from hocket.errors import ConfigError, UsageError
from hocket.records.step_rows import load_steps
from hocket.results.report import Report
from support import delayed
from support.delayed import Steady, Waves, WithActions, play

ENV = "support.delayed:make_holding"
PLAIN = "support.delayed:make_plain"


def evaluate(policy: Any = None, env: str = ENV, **settings: Any) -> Report:
    given = {"lanes": 1, "episodes": 4} | settings
    return hocket.evaluate(env=env, policy=policy or Waves(), **given)


def outcomes(report: Report) -> list[tuple[Any, ...]]:
    """All that a trial's result is, but for wall time."""
    return [(e.trial.id, e.outcome, e.steps, e.total_reward, e.chunks) for e in report.episodes]


def expected(delay: str, method: str, env: str = ENV, episodes: int = 4, **how: Any) -> list[Any]:
    """The same from the plain loop."""
    law = Delays.parse(delay)
    toy = delayed.make_holding() if env == ENV else delayed.make_plain()
    found = []
    for seed in range(episodes):
        trial = Trial(env, env.partition(":")[2], seed)
        steps = functools.partial(law.steps, trial, rate=None)
        played = play(toy, trial, lambda k, steps=steps: steps(k), method=method, **how)
        found.append((len(played.actions), round(played.total, 9), played.decisions))
    return found


def brief(report: Report) -> list[Any]:
    # Rewards show every action; the engine adds them chunk by chunk, so the last bit may differ.
    return [(e.steps, round(e.total_reward, 9), e.chunks) for e in report.episodes]


@pytest.mark.parametrize("policy", [Waves, WithActions, lambda: Waves(history=3)])
def test_no_delay_is_pause_to_the_bit(policy: Any) -> None:
    paused = outcomes(evaluate(policy(), episodes=2))
    for method in ("naive", "blocking"):
        assert outcomes(evaluate(policy(), method=method, episodes=2)) == paused


def test_prefix_without_delay_is_pause_to_the_bit() -> None:
    paused = outcomes(evaluate(delayed.Continuing(), episodes=2))
    policy = delayed.Continuing()
    assert outcomes(evaluate(policy, method="prefix", episodes=2)) == paused
    with pytest.raises(UsageError, match="cannot continue a chunk by --method prefix"):
        evaluate(Waves(), method="prefix", episodes=2)


@pytest.mark.parametrize(
    ("delay", "first", "env"), [("3", "free", ENV), ("5", "held", PLAIN), ("0..4", "held", ENV)]
)
@pytest.mark.parametrize("method", ["naive", "blocking"])
def test_delayed_run_is_the_plain_loop(method: str, delay: str, first: str, env: str) -> None:
    report = evaluate(env=env, method=method, delay=delay, first_chunk=first, episodes=3)
    assert brief(report) == expected(delay, method, env, first=first, episodes=3)


@given(
    law=delayed.laws(8),
    spare=st.integers(0, 3),
    history=st.integers(1, 4),
    method=st.sampled_from(["naive", "blocking"]),
)
@settings(max_examples=12, deadline=None)  # an example is a whole run
def test_any_delay_replan_and_history_is_the_plain_loop(
    law: tuple[int, str], spare: int, history: int, method: str
) -> None:
    s, delay = law
    length = s + Delays.parse(delay).bounds(None)[1] + spare
    policy = Waves(length, history=history, replan=s)
    report = evaluate(policy, method=method, delay=delay, episodes=1)
    how = {"s": s, "length": length, "history": history}
    assert brief(report) == expected(delay, method, episodes=1, **how)


@pytest.mark.heavy
@given(law=delayed.laws(4))
@example(law=(1, "0..1"))
@example(law=(4, "spikes:0..4@0.3"))
@settings(max_examples=2, deadline=None)
def test_delay_from_nothing_to_a_whole_decision_is_the_plain_loop_on_two_lanes(
    law: tuple[int, str],
) -> None:
    # Where an answer comes as late as the next decision, and that at once, no action is left.
    s, delay = law
    report = evaluate(Waves(2 * s, replan=s), method="naive", delay=delay, lanes=2)
    assert brief(report) == expected(delay, "naive", s=s, length=2 * s)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("method", ["naive", "blocking"])
def test_lanes_in_processes_give_the_same_results(method: str) -> None:
    common = {"method": method, "delay": "1..5", "episodes": 6, "first_chunk": "held"}
    assert outcomes(evaluate(lanes=3, **common)) == outcomes(evaluate(lanes=1, **common))


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["naive", "blocking"])
def test_steps_are_recorded_with_the_chunk_that_they_came_from(method: str, tmp_path: Path) -> None:
    evaluate(method=method, delay=3, out=tmp_path / "run", first_chunk="held", episodes=1)
    table = load_steps(tmp_path / "run").to_pydict()
    toy, trial = delayed.make_holding(), Trial(ENV, "make_holding", 0)
    played = play(toy, trial, lambda _: 3, method=method, first="held")
    assert table["chunk"][1:] == played.chunks
    assert table["age"][1:] == played.ages
    assert np.allclose(table["action"][1:], played.actions)
    assert max(played.ages) == 3 + 5 - 1  # the oldest observation behind an action: d + s - 1


@pytest.mark.parametrize(("method", "delay"), [("rtc", "0"), ("rtc", "3"), ("prefix", "1..5")])
def test_policy_that_continues_is_told_what_is_committed(method: str, delay: str) -> None:
    policy = delayed.Continuing()
    report = evaluate(policy, method=method, delay=delay, episodes=2)
    assert brief(report) == expected(delay, method, episodes=2)
    assert policy.method == method


def test_blocking_is_an_env_that_holds_still_after_every_chunk() -> None:
    paused = evaluate(Steady(), env="support.delayed:make_wrapped", episodes=2)
    blocked = evaluate(Steady(), env=PLAIN, method="blocking", delay=3, episodes=2)
    assert [round(e.total_reward, 9) for e in blocked.episodes] == [
        round(e.total_reward, 9) for e in paused.episodes
    ]


def test_ensemble_averages_what_chunks_say_of_a_step_also_when_they_come_late() -> None:
    report = evaluate(method="naive", delay=3, ensemble=0.1, replan=3, episodes=2)
    found = [(e.steps, round(e.total_reward, 9)) for e in report.episodes]
    assert found == [delayed.play_ensemble(seed, d=3, s=3, coefficient=0.1) for seed in range(2)]


class Beside(WithActions):
    """Infers on two threads at once, slowly enough for episodes to end meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = dataclasses.replace(self.spec, concurrency=2, max_batch=1)
        self.inside: set[str] = set()

    def infer(self, batch: Batch) -> Any:
        sessions = {row.session for row in batch.rows}
        self.inside |= sessions
        seen = batch.arrays[delayed.STATE].copy()
        time.sleep(0.01)
        assert np.array_equal(seen, batch.arrays[delayed.STATE])
        self.inside -= sessions
        return super().infer(batch)

    def end_session(self, session: str) -> None:
        assert session not in self.inside
        super().end_session(session)


@pytest.mark.slow
@pytest.mark.heavy
def test_session_ends_after_the_inference_under_way() -> None:
    policy = Beside()
    common = {"method": "naive", "delay": 4, "episodes": 8}
    report = evaluate(policy, lanes=3, **common)
    assert brief(report) == expected("4", "naive", episodes=8)
    assert not policy.asked


@pytest.mark.parametrize("fault", ["raise_at", "kill_at"])
def test_fault_in_committed_steps_costs_one_attempt(fault: str, tmp_path: Path) -> None:
    # Step 7 is executed after the second decision, while the policy may still think.
    config = {fault: 7, "once_file": str(tmp_path / "once")}
    report = evaluate(env="toy:count", method="naive", delay=4, env_config=config, lanes=2)
    sound = evaluate(env="toy:count", method="naive", delay=4)
    assert outcomes(report) == outcomes(sound)
    assert sorted(e.attempt for e in report.episodes) == [0, 0, 0, 1]


class Ended:
    """Keeps what the end of a run says."""

    notes: dict[str, Any]

    def on(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self.notes = dict(event.notes)

    def close(self) -> None: ...


def test_answers_whose_episode_ended_are_dropped_and_counted() -> None:
    reader, policy = Ended(), WithActions()
    report = evaluate(policy, method="naive", delay=4, episodes=12, readers=[reader])
    lengths = [(episode.steps - 1) // 5 for episode in report.episodes]
    # An episode that ends within four steps of a decision drops what was asked there.
    ends = [(episode.steps - 1) % 5 < 4 and episode.steps > 5 for episode in report.episodes]
    assert reader.notes["dropped_answers"] == sum(ends)
    assert [episode.chunks for episode in report.episodes] == [length + 1 for length in lengths]
    assert len(policy.ended) == len(set(policy.ended)) >= 12
    assert not policy.asked


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delay": 4}, "needs a --method"),
        ({"delay": "0..4"}, "needs a --method"),
        ({"delay": 6, "method": "naive"}, "Raise --replan to 6"),
        ({"delay": 4, "method": "naive", "replan": 9}, "Set --replan to 8 or less"),
        ({"delay": 7, "method": "naive", "replan": 7}, "lower --delay"),
        ({"delay": "soon", "method": "naive"}, "is no delay"),
        ({"delay": "6..2", "method": "naive"}, "ends before it begins"),
        ({"delay": "1.5", "method": "naive"}, "whole"),
        ({"delay": "50ms", "method": "naive", "env": "support.delayed:make_plain"}, "control rate"),
        ({"delay": "1,2", "method": "naive"}, "a run has one"),
        ({"delay": 2, "method": "blocking", "env": "toy:plain"}, "hold_action"),
        ({"delay": 2, "method": "rtc"}, "cannot continue"),
        ({"delay": 2, "method": "blocking", "ensemble": 0.1}, "--ensemble"),
        ({"first_chunk": "held"}, "--first-chunk"),
        ({"rtc_config": {"weight": 3.0}}, "--rtc"),
    ],
)
def test_what_cannot_be_is_refused_with_the_flag_to_change(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises((ConfigError, hocket.errors.HocketError), match=words):
        evaluate(**given)


def test_milliseconds_become_the_steps_that_begin_before_the_answer() -> None:
    trial = Trial("s", "t", 0)
    for text, steps in (("80ms", 4), ("81ms", 5), ("0ms", 0), ("1ms", 1), ("60ms", 3)):
        assert Delays.parse(text).steps(trial, 1, 50.0) == steps


@given(st.integers(0, 10_000), st.integers(0, 50))
def test_drawn_delays_keep_to_their_law(seed: int, chunk: int) -> None:
    trial = Trial("s", "t", seed)
    assert 2 <= Delays.parse("2..6").steps(trial, chunk, None) <= 6
    assert Delays.parse("spikes:1..7@0.3").steps(trial, chunk, None) in (1, 7)
    assert 1 <= Delays.parse("geometric:1..4@0.5").steps(trial, chunk, None) <= 4


def test_drawn_delays_have_the_shares_that_they_name() -> None:
    trials = [Trial("s", "t", seed) for seed in range(4000)]
    spikes = [Delays.parse("spikes:1..7@0.3").steps(trial, 2, None) for trial in trials]
    assert abs(spikes.count(7) / 4000 - 0.3) < 0.03
    even = [Delays.parse("2..5").steps(trial, 2, None) for trial in trials]
    assert all(abs(even.count(value) / 4000 - 0.25) < 0.03 for value in (2, 3, 4, 5))
    more = [Delays.parse("geometric:0..9@0.5").steps(trial, 2, None) for trial in trials]
    assert abs(more.count(0) / 4000 - 0.5) < 0.03
    assert abs(more.count(1) / 4000 - 0.25) < 0.03


@pytest.mark.slow
def test_lanes_elsewhere_give_the_same_results() -> None:
    # Nothing is shared with these workers: what they see comes in messages, past a guard.
    common = {"env": "toy:count", "method": "naive", "delay": "1..5", "episodes": 3}
    report = evaluate(runtime="loopback", lanes=2, **common)
    assert outcomes(report) == outcomes(evaluate(**common))
