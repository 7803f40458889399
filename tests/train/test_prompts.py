"""Prompts, histories and images reach the network, where it acts and where it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hocket import evaluate
from hocket.testing import toy
from support.prompted import Watched
from train.test_training import Trained, run, success

GOALS = "support.prompted:TwoGoals"


def learn(tmp_path: Path, **changes: Any) -> Trained:
    return run(
        tmp_path,
        env=(GOALS,),
        policy="support.prompted:PromptActor",
        policy_config={"reads": changes.pop("reads", True)},
        batch=64,
        minibatch=32,
        lr=2e-2,
        eval_every=10_000,
        eval_episodes=10,
        **{"steps": 600, **changes},
    )


@pytest.mark.slow
def test_two_goals_that_only_the_prompt_tells_apart_are_learnt(tmp_path: Path) -> None:
    result = learn(tmp_path)
    assert success(result)[0] == pytest.approx(0.5)
    assert success(result)[-1] >= 0.95
    report = evaluate(
        env=GOALS,
        policy=str(result.run / "best"),
        policy_config={"network": "support.prompted:PromptActor"},
        episodes=10,
        lanes=1,
    )
    assert report.overall.rate == pytest.approx(result.best)


@pytest.mark.slow
def test_without_the_prompt_they_are_not(tmp_path: Path) -> None:
    found = success(learn(tmp_path, reads=False, steps=400))
    # Whoever cannot read does the same in all episodes: right in half of them, at best.
    assert found[0] == pytest.approx(0.5)
    assert max(found) <= 0.5


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The cameras that a toy was asked for, at each look."""
    found: list[tuple[int, ...]] = []
    picture = toy.PlainToyEnv._picture

    def noted(env: Any, camera: int) -> Any:
        found.append((env._seed, env._step, camera))
        return picture(env, camera)

    monkeypatch.setattr(toy.PlainToyEnv, "_picture", noted)
    return found


def test_histories_and_images_come_as_the_network_asks(
    tmp_path: Path, looks: list[tuple[int, ...]]
) -> None:
    Watched.shown.clear()
    run(
        tmp_path,
        env=("toy:image",),
        env_config={"length_min": 16, "length_max": 16, "image_size": 8},
        policy="support.prompted:Watched",
        policy_config={"images": True, "history": 2, "chunk_length": 8},
        max_steps=12,
        reward="env",
        batch=4,
        steps=40,
    )
    kinds = {kind for kind, _ in Watched.shown}
    assert kinds == {"act", "evaluate", "value"}
    for _, seen in Watched.shown:
        rows = len(seen["task"])
        assert seen["observation/image"].shape == (rows, 2, 8, 8, 3)
        assert seen["observation/image"].dtype == torch.uint8
        assert seen["observation/state"].shape == (rows, 2, 5)
        assert "observation/wrist_image" not in seen
    assert {camera for seed, _, camera in looks if seed >= 10_000_000} == {0}


def test_cameras_are_rendered_where_a_chunk_is_decided_on_and_at_the_end(
    tmp_path: Path, looks: list[tuple[int, ...]]
) -> None:
    run(
        tmp_path,
        env=("toy:image",),
        env_config={"length_min": 16, "length_max": 16, "image_size": 8},
        policy="support.prompted:PromptActor",
        policy_config={"images": True, "chunk_length": 8},
        max_steps=12,
        reward="env",
        batch=2,
        steps=20,
    )
    assert {step for seed, step, _ in looks if seed >= 10_000_000} == {0, 8, 12}
