"""Two hundred updates at once with collection, while workers die and one side is slow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hocket.train.loop import train
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.contract import Evaluated, Tensors
from train.test_training import ENV, records, settings


class SlowLearner(ChunkActor):
    """Takes its time when gradients are wanted."""

    def evaluate(self, observation: Tensors, actions: object, extras: Tensors) -> Evaluated:
        time.sleep(0.01)
        return super().evaluate(observation, actions, extras)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algo", ["ppo", "grpo"])
@pytest.mark.parametrize("slow", ["learner", "collector"])
def test_200_updates_with_crashing_workers_neither_deadlock_nor_go_stale(
    tmp_path: Path, slow: str, algo: str
) -> None:
    config = settings(
        env=(ENV,),
        policy="train.test_async_stress:SlowLearner" if slow == "learner" else "actor",
        algo=algo,
        # A dense reward tells all members of a group apart: every group is learnt from.
        reward="env" if algo == "grpo" else "success",
        mode="async",
        max_staleness=2,
        batch=8,
        group=4,
        lanes=3,
        steps=8 * 16 * 220,
        lr=1e-4,
        epochs=1,
        eval_every=4000,
        eval_episodes=4,
        checkpoint_every=4000,
        env_config={"crash_share": 0.002, "step_s": 0.002 if slow == "collector" else 0.0},
    )
    result = train(config, tmp_path / "run", say=None)
    updates = records(result, "update")
    assert result.complete
    assert len(updates) >= 200
    assert max(record["learn/max_staleness"] for record in updates) <= 2
    last = updates[-1]
    assert last["count/lost_attempts"] > 0
    # The queue refuses a chunk that comes twice; here every update is counted once.
    numbers = [record["count/updates"] for record in updates]
    assert numbers == [float(n + 1) for n in range(len(numbers))]
    assert last["count/dropped"] == 0
    assert len(json.dumps(records(result, "eval"))) > 2
