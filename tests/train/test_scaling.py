"""Rewards of any size and states in any unit are learnt from alike."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hocket import evaluate
from hocket.core.specs import ActionSpec, ArraySpec
from hocket.train.algorithms.ranks import Ranks
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.learner.statistics import Moments
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.building import Description, cameras_of
from hocket.train.networks.contract import (
    Evaluated,
    Observations,
    Shapes,
    Tensors,
    bounds_of,
)
from hocket.train.networks.policies import ActorConfig
from train.test_training import ENV, last_weights, records, run, same_weights, success


def dense(**changes: Any) -> dict[str, Any]:
    return {"reward": "env", "steps": 500, **changes}


@pytest.mark.slow
def test_rewards_of_another_size_give_the_same_policy(tmp_path: Path) -> None:
    for name, size in (("small", 1.0), ("large", 1024.0)):
        run(tmp_path, name, **dense(env_config={"reward_size": size}))
    small, large = last_weights(tmp_path / "small"), last_weights(tmp_path / "large")
    # A power of two changes no digit.
    assert all(torch.equal(small[key], large[key]) for key in small)


@pytest.mark.slow
def test_states_are_seen_in_units_of_their_spread_by_training_and_evaluation(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, **dense(eval_every=200, eval_episodes=4))
    weights = load_file(result.run / "best" / checkpoint.WEIGHTS)
    # The point moves within a circle of 0.6 and what it passes: never by 1 on average.
    assert ((weights["scale"] > 0.1) & (weights["scale"] < 0.7)).all()
    assert weights["mean"].any()
    report = evaluate(env=ENV, policy=str(result.run / "best"), episodes=4, lanes=1)
    best = json.loads((result.run / "best" / "score.json").read_text())
    assert report.overall.returns.value == pytest.approx(best["mean_return"])


@pytest.mark.slow
def test_probabilities_are_those_of_the_version_that_sampled(tmp_path: Path) -> None:
    result = run(tmp_path, **dense(lr=0.0, steps=1000))
    updates = records(result, "update")
    assert len(updates) > 3
    assert max(record["learn/kl"] for record in updates) < 1e-9
    assert all(record["learn/clip_share"] == 0 for record in updates)
    assert last_weights(result.run)["mean"].any()


@pytest.mark.slow
def test_what_was_measured_goes_on_after_a_resume(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", **dense(target_kl=0.001))
    part = run(tmp_path, "part", **dense(target_kl=0.001, minutes=0.0))
    assert len(records(part, "update")) == 1
    rest = run(tmp_path, "part", resume=True, **dense(target_kl=0.001))
    assert same_weights(whole.run, rest.run)
    for key in ("learn/reward_scale", "learn/pace"):
        curves = [[record[key] for record in records(one, "update")] for one in (whole, rest)]
        assert curves[0] == curves[1]
        assert len(set(curves[0])) > 1


@pytest.mark.slow
def test_weights_that_training_begins_with_keep_their_units(tmp_path: Path) -> None:
    first = run(tmp_path, "first", **dense(steps=200))
    folder = checkpoint.latest(first.run)
    again = run(tmp_path, "again", **dense(policy=str(folder), policy_config={}))
    one, other = last_weights(first.run), last_weights(again.run)
    for key in ("mean", "scale"):
        assert torch.equal(one[key], other[key])


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(5.0, 3.0, (100, 2)))
    moments = Moments(2, 2)
    for part in values.split(7):
        moments.add(1, part, Ranks())
    torch.testing.assert_close(moments.mean[1], values.mean(0))
    torch.testing.assert_close(moments.spread[1], values.std(0, unbiased=False))
    assert (moments.spread[0] == 1).all()


class Dropping(ChunkActor):
    """Drops a third of what it sees, and counts how often it was trained."""

    Config = ActorConfig

    def __init__(self, shapes: Shapes, config: ActorConfig) -> None:
        super().__init__(shapes, config)
        self.dropout = torch.nn.Dropout(0.3)
        self.register_buffer("trained", torch.zeros(()))

    def _see(self, observation: Tensors) -> torch.Tensor:
        return self.dropout(super()._see(observation))

    def evaluate(self, observation: Tensors, actions: torch.Tensor, extras: Tensors) -> Evaluated:
        self.trained += 1
        return super().evaluate(observation, actions, extras)


OWN = {
    "policy": "train.test_scaling:Dropping",
    "policy_config": {"chunk_length": 4, "hidden": (8,)},
}


def test_a_network_with_dropout_says_the_same_when_it_acts_and_when_it_learns(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, lr=0.0, **OWN)
    for record in records(result, "update"):
        assert record["learn/kl"] < 1e-9
        assert record["learn/clip_share"] == 0


def test_buffers_that_change_reach_the_side_that_acts(tmp_path: Path) -> None:
    result = run(tmp_path, eval_every=1, eval_episodes=2, lr=0.0, stop_at=2.0, **OWN)
    best = checkpoint.read_table(result.run / "best" / "score.json")
    kept = load_file(result.run / "best" / checkpoint.WEIGHTS)["trained"]
    assert bool(kept) == (best["version"] > 0)
    held = [record for record in records(result, "eval") if record["eval/version"] > 0]
    assert held


@pytest.mark.slow
def test_rewards_of_a_thousand_are_learnt_from(tmp_path: Path) -> None:
    sized = {"env_config": {"reward_size": 1000.0}}
    result = run(tmp_path, **dense(steps=3000, eval_every=1500, eval_episodes=10, **sized))
    assert max(success(result)) >= 0.9


def test_actions_are_told_in_units_of_their_range() -> None:
    seen = {"observation/state": ArraySpec(shape=(2,), dtype="float32")}
    bounds = ((-2.0, 2.0), (0.0, 400.0), (-1.0, 1.0))
    plain = Shapes(observations=seen, action_size=3, tasks=("t",))
    scaled = dataclasses.replace(plain, bounds=bounds)
    assert Shapes.from_plain(scaled.to_plain()).bounds == bounds
    assert Shapes.from_plain({**plain.to_plain(), "bounds": ()}).bounds == ()
    config = ActorConfig(chunk_length=2, hidden=(8,), std=0.5)
    observation = Observations(
        {"observation/state": torch.ones(1, 2), "task": torch.zeros(1, dtype=torch.int64)}
    )
    noise = torch.ones(1, 6)
    one, other = (
        ChunkActor(s, config).act(observation, noise, deterministic=False) for s in (plain, scaled)
    )
    middle, reach = torch.tensor([0.0, 200.0, 0.0]), torch.tensor([2.0, 200.0, 1.0])
    torch.testing.assert_close(other.actions, middle + reach * one.actions)
    torch.testing.assert_close(other.log_prob, one.log_prob - reach.log().sum())
    again = ChunkActor(scaled, config).evaluate(observation, other.actions, {})
    torch.testing.assert_close(again.log_prob, other.log_prob)


def test_bounds_that_mean_nothing_are_no_units() -> None:
    low, high = np.array([-np.inf, -3e38, 0.0, 1.0]), np.array([np.inf, 3e38, 4.0, 1.0])
    action = ActionSpec(size=4, kind="box", shape=(4,), dtype="<f4", low=low, high=high)
    assert bounds_of(action) == ((-1.0, 1.0), (-1.0, 1.0), (0.0, 4.0), (-1.0, 1.0))


def test_a_saved_policy_of_states_asks_for_no_camera(tmp_path: Path) -> None:
    seen = {"observation/state": ArraySpec(shape=(2,), dtype="float32")}
    shapes = Shapes(observations=seen, action_size=1, tasks=("t",), cameras=("camera",))
    for images, wanted in ((False, ()), (True, ("camera",))):
        plain = Description(
            network="hocket.train.networks.actor:ChunkActor",
            config={"images": images},
            shapes=shapes,
        ).to_plain()
        checkpoint.write_folder(tmp_path / "saved", {}, {checkpoint.POLICY: plain})
        config = TrainConfig(env=("toy:count",), policy=str(tmp_path / "saved"))
        assert cameras_of(config) == wanted
