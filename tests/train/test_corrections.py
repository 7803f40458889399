"""An expert takes over in states that the policy reached; who acted is kept and exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket import evaluate
from hocket.core.data import INTERVENTION, Batch, Row, Trial, noise_seed
from hocket.core.specs import PolicySpec
from hocket.errors import ConfigError, SpecMismatchError, UnknownNameError, UsageError
from hocket.exports import export_run
from hocket.records.chunks import load_chunks
from hocket.runs.demonstrations.chosen import ExportConfig
from hocket.train.collect.takeover import Takeover, TakeoverRule
from hocket.train.data.store import DATA, open_data
from hocket.train.learner import checkpoint
from train.test_cloning import BC, demonstrate
from train.test_training import ENV, records, run, same_weights, settings


class Saying:
    """Answers chunks that count up from a number."""

    def __init__(self, first: float, length: int, **more: Any) -> None:
        self.spec = PolicySpec(chunk_length=length, action_size=1, **more)
        self._first = first
        self.calls = 0

    def infer(self, batch: Batch) -> Any:
        self.calls += 1
        chunk = self._first + np.arange(self.spec.chunk_length)
        return np.tile(chunk[None, :, None], (batch.size, 1, 1))

    def close(self) -> None: ...


def rows(*names: str, chunk: int) -> Batch:
    trials = [Trial(suite="toy", task="count", seed=int(name)) for name in names]
    made = [
        Row(
            trial=trial,
            attempt=0,
            chunk=chunk,
            noise_seed=noise_seed(trial, chunk),
            prompt="",
            session=trial.id,
        )
        for trial in trials
    ]
    return Batch(arrays={}, rows=tuple(made))


def acted(policy: Takeover, *names: str, decisions: int) -> list[list[tuple[float, bool]]]:
    """What each row executes, and whether the expert did it."""
    found: list[list[tuple[float, bool]]] = [[] for _ in names]
    for chunk in range(decisions):
        answer = policy.infer(rows(*names, chunk=chunk))
        for row, one in enumerate(found):
            expert = bool(answer.extras[INTERVENTION][row])
            one += [(value, expert) for value in answer.values[row, :, 0].tolist()]
    return found


def test_the_learner_is_asked_once_for_each_of_its_chunks() -> None:
    learner = Saying(0.0, 4)
    policy = Takeover(learner, Saying(100.0, 1), TakeoverRule(rate=0.0))
    (found,) = acted(policy, "0", decisions=8)
    assert found == [(float(i % 4), False) for i in range(8)]
    assert learner.calls == 2


def test_an_expert_that_took_over_acts_to_the_end() -> None:
    policy = Takeover(Saying(0.0, 4), Saying(100.0, 2), TakeoverRule(rate=0.3))
    found = acted(policy, *map(str, range(40)), decisions=16)
    begins = [[expert for _, expert in one].index(True) for one in found if one[-1][1]]
    assert len(set(begins)) > 3
    assert all(begin % 4 == 0 for begin in begins), "where the learner would have decided"
    for one in found:
        said = [expert for _, expert in one]
        assert said == sorted(said)
        assert all(value >= 100 for value, expert in one if expert)
    again = Takeover(Saying(0.0, 4), Saying(100.0, 2), TakeoverRule(rate=0.3))
    assert acted(again, *map(str, range(40)), decisions=16) == found
    policy.end_session("toy/count/0")
    policy.close()


def test_a_failure_is_done_again_to_a_step_of_its_first_half() -> None:
    trials = [Trial(suite="toy", task="count", seed=seed) for seed in range(20)]
    done = {trial.id: -1.0 - np.arange(10.0)[:, None] for trial in trials}
    policy = Takeover(Saying(0.0, 4), Saying(100.0, 1), TakeoverRule(rate=0.0, recorded=done))
    begins = set()
    for one in acted(policy, *map(str, range(20)), decisions=8):
        begin = [expert for _, expert in one].index(True)
        assert [value for value, _ in one[:begin]] == [-1.0 - i for i in range(begin)]
        assert all(expert for _, expert in one[begin:])
        begins.add(begin)
    assert max(begins) <= 5
    assert len(begins) > 2


def test_a_policy_with_a_history_is_refused() -> None:
    with pytest.raises(SpecMismatchError, match="history"):
        Takeover(Saying(0.0, 4, history=2), Saying(1.0, 1), TakeoverRule(rate=0.0))


def test_nobody_to_take_over_is_refused() -> None:
    with pytest.raises(ConfigError, match="--expert"):
        settings(algo="dagger", data=("shown",))
    with pytest.raises(ConfigError, match="dagger learns from recorded episodes"):
        settings(algo="dagger", expert="zero")


def test_an_expert_or_failures_that_are_not_there_are_refused(tmp_path: Path) -> None:
    named = {**BC, "algo": "dagger", "data": ("shown",)}
    with pytest.raises(UnknownNameError, match="nobody"):
        run(tmp_path, **named, expert="nobody")
    good = demonstrate(tmp_path / "good", episodes=1)
    with pytest.raises(UsageError, match="no episode that failed"):
        run(tmp_path, **named, expert="zero", failures=str(good))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_failures_of_a_run_are_gone_on_with(tmp_path: Path) -> None:
    shown, bad = demonstrate(tmp_path / "shown", episodes=2), tmp_path / "bad"
    evaluate(env=ENV, policy="zero", episodes=4, lanes=1, video="none", out=bad, progress=False)
    named = {**BC, "algo": "dagger", "expert": "support.point_env:Homing", "data": (str(shown),)}
    result = run(tmp_path, **{**named, "rounds": 1, "steps": 400}, failures=str(bad))
    (told,) = records(result, "round")
    assert told["corrections/episodes"] == 4
    assert told["corrections/success"] == 1.0
    assert told["corrections/taught"] > 0


@pytest.mark.slow
def test_rounds_are_recorded_learnt_from_and_exported_with_who_acted(tmp_path: Path) -> None:
    shown = demonstrate(tmp_path / "shown", episodes=2)
    named = {**BC, "algo": "dagger", "expert": "support.point_env:Homing", "data": (str(shown),)}
    named |= {"rounds": 2, "batch": 6, "steps": 1200, "checkpoint_every": 1}
    result = run(tmp_path, **named)
    taught = [int(one["corrections/taught"]) for one in records(result, "round")]
    assert len(taught) == 2
    before = open_data(result.run / DATA, 0)
    assert [len(open_data(result.run / DATA, n)) - len(before) for n in (1, 2)] == [
        taught[0],
        sum(taught),
    ]
    # A run that was killed after a round, before its checkpoint, learns from what it had.
    folder = result.run / "corrections" / "0"
    assert set(load_chunks(folder)["source"].to_pylist()) == {"policy", "expert"}
    export_run(folder, "lerobot", tmp_path / "set", ExportConfig(fps=10, images=False))
    info = json.loads((tmp_path / "set" / "meta" / "info.json").read_text())
    assert info["features"]["intervention"]["dtype"] == "bool"
    (file,) = (tmp_path / "set" / "data").rglob("*.parquet")
    column = pq.read_table(file)["intervention"].to_pylist()
    assert 0 < sum(column) < len(column)
    # Read from either, it is the expert's part alone.
    for name in (str(folder), str(tmp_path / "set")):
        bc = {**BC, "steps": 100, "data": (name,)}
        clone = run(tmp_path, f"of {Path(name).name}", **bc)
        assert len(open_data(clone.run / DATA)) == taught[0]


@pytest.mark.slow
def test_a_run_that_was_killed_after_a_round_learns_what_it_would_have(tmp_path: Path) -> None:
    shown = demonstrate(tmp_path / "shown", episodes=2)
    named = {**BC, "algo": "dagger", "expert": "support.point_env:Homing", "data": (str(shown),)}
    named |= {"rounds": 1, "batch": 4, "steps": 800, "minibatch": 4, "checkpoint_every": 1}
    whole = run(tmp_path, "whole", **named)
    killed = tmp_path / "killed"
    shutil.copytree(whole.run, killed)
    kept = checkpoint.checkpoints(killed)
    assert [checkpoint.read_table(one / checkpoint.STATE)["corrected"] for one in kept] == [0, 1]
    shutil.rmtree(kept[-1])
    rest = run(tmp_path, "killed", resume=True, **named)
    assert same_weights(rest.run, whole.run)
    assert len(open_data(rest.run / DATA)) == len(open_data(whole.run / DATA))
