"""Training from end to end, on a point that should reach the origin."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hocket import evaluate
from hocket.errors import EnvError
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.learner.process import InProcess, Remote
from hocket.train.loop import Trained, train
from hocket.workers.fleet import Fleet
from support.heard import Heard

ENV = "support.point_env:make"


def settings(**changes: Any) -> TrainConfig:
    plain: dict[str, Any] = {
        "env": (ENV,),
        "policy": "actor",
        "policy_config": {"chunk_length": 4, "hidden": (32, 32), "std": 0.6},
        "steps": 500,
        "lanes": 1,
        "batch": 16,
        "lr": 3e-3,
        "value_only": 0,
        "eval_every": 0,
        "checkpoint_every": 0,
        **changes,
    }
    return TrainConfig(**plain)


def run(
    tmp_path: Path,
    name: str = "run",
    *,
    resume: bool = False,
    allow_changes: bool = False,
    **changes: Any,
) -> Trained:
    folder = tmp_path / name
    return train(settings(**changes), folder, resume=resume, allow_changes=allow_changes, say=None)


def records(result: Trained, kind: str) -> list[dict[str, Any]]:
    lines = (result.run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.latest(folder) / checkpoint.WEIGHTS)


def same_weights(one: Path, other: Path) -> bool:
    a, b = last_weights(one), last_weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def success(result: Trained) -> list[float]:
    return [record["eval/success"] for record in records(result, "eval")]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ppo_learns_in_both_modes(tmp_path: Path, mode: str) -> None:
    # Data of up to two versions before teaches less for each step; how old it is, the machine's
    # load decides.
    steps = 2500 if mode == "sync" else 5000
    result = run(tmp_path, mode=mode, steps=steps, eval_every=1200, eval_episodes=10, epochs=8)
    assert result.complete
    assert success(result)[-1] >= success(result)[0] + 0.3
    assert max(success(result)) >= 0.9
    report = evaluate(env=ENV, policy=str(result.run / "best"), episodes=10, lanes=1)
    assert report.overall.rate == pytest.approx(result.best)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_grpo_learns_in_both_modes(tmp_path: Path, mode: str) -> None:
    result = run(
        tmp_path,
        algo="grpo",
        group=8,
        mode=mode,
        steps=2500 if mode == "sync" else 5000,  # as above
        eval_every=1200,
        eval_episodes=10,
        pin_version=mode == "async",
    )
    assert max(success(result)) >= success(result)[0] + 0.2
    assert records(result, "update")[-1]["count/filtered_groups"] >= 0


def test_synchronous_training_is_the_same_to_the_bit_whatever_the_lanes(tmp_path: Path) -> None:
    common = {"eval_every": 200, "eval_episodes": 3}
    first = run(tmp_path, "first", **common)
    again = run(tmp_path, "again", **common)
    other = run(tmp_path, "other", lanes=2, **common)
    assert same_weights(first.run, again.run)
    assert same_weights(first.run, other.run)
    assert success(first) == success(again) == success(other)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_learner_is_told_once_in_a_turn_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    counts = Counter[str]()

    def count(owner: type[Any], name: str) -> None:
        method = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("tell", "news"):
        count(InProcess if mode == "sync" else Remote, name)
    count(Fleet, "poll")
    heard = Heard()
    train(settings(mode=mode), tmp_path / "run", say=None, readers=lambda _: [heard])
    assert 0 < counts["tell"] == counts["news"] <= counts["poll"]
    assert counts["news"] < len(heard.events)


def test_another_seed_is_another_training(tmp_path: Path) -> None:
    first, other = run(tmp_path, "first", steps=300), run(tmp_path, "other", steps=300, seed=1)
    assert not same_weights(first.run, other.run)


def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", eval_every=300, eval_episodes=3, lr_end=1e-4)
    part = run(tmp_path, "part", eval_every=300, eval_episodes=3, lr_end=1e-4, minutes=0.0)
    assert records(part, "update")[-1]["count/updates"] == 1
    # The clock stopped it after one update; without that limit it goes on to the end.
    rest = run(tmp_path, "part", resume=True, eval_every=300, eval_episodes=3, lr_end=1e-4)
    assert same_weights(whole.run, rest.run)
    updates = [record["count/updates"] for record in records(rest, "update")]
    assert updates == [float(n + 1) for n in range(len(updates))]
    assert rest.env_steps == whole.env_steps


@pytest.mark.slow
def test_an_async_run_goes_on_from_its_version_and_steps(tmp_path: Path) -> None:
    part = run(tmp_path, mode="async", steps=400)
    version = checkpoint.read_table(checkpoint.latest(part.run) / "state.json")["version"]
    # Lanes go on collecting while the learner learns: on a busy machine far beyond 400 steps.
    rest = run(tmp_path, mode="async", steps=part.env_steps + 400, resume=True)
    updates = [record["count/updates"] for record in records(rest, "update")]
    assert version + 1 in updates
    assert len(updates) == len(set(updates))
    assert rest.env_steps > part.env_steps


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_every_episode_is_reset_once_and_never_stepped_after_its_end(
    tmp_path: Path, mode: str
) -> None:
    witness = tmp_path / "witness"
    run(tmp_path, mode=mode, lanes=2, env_config={"witness": str(witness)}, steps=300)
    lines = witness.read_text().splitlines()
    seeds = [int(line.split()[1]) for line in lines if line.startswith("reset")]
    # The first look at the env has a seed of evaluation's; every training seed comes once.
    training = [seed for seed in seeds if seed >= 10_000_000]
    assert len(training) == len(set(training)) > 16
    assert len(seeds) - len(training) == 1
    assert "stepped on" not in lines


def test_true_env_steps_are_on_the_x_axis(tmp_path: Path) -> None:
    result = run(tmp_path, steps=300)
    updates = records(result, "update")
    steps = [record["env_steps"] for record in updates]
    assert steps == sorted(steps)
    assert steps[-1] == result.env_steps
    assert result.env_steps < 300 + 16 * 16


def test_groups_that_do_not_start_alike_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="did not start alike"):
        run(tmp_path, algo="grpo", group=4, env_config={"wild": True}, lanes=1)


@pytest.mark.slow
def test_async_data_is_never_older_than_allowed_and_nothing_is_dropped(tmp_path: Path) -> None:
    result = run(tmp_path, mode="async", steps=4000, max_staleness=1)
    updates = records(result, "update")
    assert max(record["learn/max_staleness"] for record in updates) <= 1
    assert updates[-1]["count/dropped"] == 0
    assert len(updates) > 10


@pytest.mark.slow
def test_async_mode_runs_without_a_correction(tmp_path: Path) -> None:
    result = run(tmp_path, mode="async", correction="none", ratio="action", steps=400)
    assert result.complete
    assert all(np.isfinite(record["learn/kl"]) for record in records(result, "update"))


def test_a_flow_policy_is_trained_through_its_denoising_chain(tmp_path: Path) -> None:
    flow = {"chunk_length": 4, "hidden": (32, 32), "std": 0.3}
    result = run(tmp_path, policy="flow", policy_config=flow, steps=400)
    updates = records(result, "update")
    assert result.complete
    assert all(np.isfinite(record["learn/policy_loss"]) for record in updates)
    assert all(record["learn/kl"] > 0 for record in updates)


@pytest.mark.slow
def test_a_residual_improves_a_policy_that_tells_no_probabilities(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        policy="zero",
        policy_config={"chunk_length": 4},
        residual=True,
        residual_scale=1.0,
        std=0.6,
        steps=3000,
        eval_every=1500,
        eval_episodes=10,
    )
    assert success(result)[0] == 0.0
    assert max(success(result)) >= 0.5


def test_tasks_are_trained_side_by_side_each_with_its_own_network(tmp_path: Path) -> None:
    result = run(tmp_path, env=("toy:count", "toy:plain"), reward="env", batch=4, steps=300)
    weights = last_weights(result.run)
    assert {key.split(".")[1] for key in weights if key.startswith("actors.")} == {"0", "1"}
    first = {key: value for key, value in weights.items() if key.endswith(".0.2.bias")}
    assert all(value.any() for value in first.values())


def test_images_are_seen_and_the_final_one_too(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        env=("toy:image",),
        env_config={"max_steps": 12, "image_size": 16},
        policy_config={"chunk_length": 4, "hidden": (8,), "images": True},
        reward="env",
        batch=4,
        steps=100,
    )
    assert any(key.startswith("encoder.towers.1") for key in last_weights(result.run))
    assert result.complete
