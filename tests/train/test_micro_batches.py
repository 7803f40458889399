"""Gradients that are summed over micro-batches are those of the whole minibatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.train.algorithms.grpo import GRPO
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.ranks import Measures, Ranks
from hocket.train.algorithms.ratios import RatioRule
from hocket.train.algorithms.stretches import Stretch
from hocket.train.algorithms.update import Algorithm
from hocket.train.config import GRPOConfig, PPOConfig
from hocket.train.networks.contract import Evaluated, Observations, Tensors
from support.prompted import PromptActor, PromptConfig
from support.trajectories import LENGTH, stretch
from train.test_collecting import SHAPES
from train.test_ranks import Keep
from train.test_training import run, same_weights

CONFIG = PromptConfig(chunk_length=LENGTH, width=6)


class Counting(PromptActor):
    """Keeps the most rows that it was given at once."""

    most = 0

    def evaluate(self, observation: Observations, actions: torch.Tensor, extras: Tensors) -> Any:
        self.most = max(self.most, len(actions))
        return super().evaluate(observation, actions, extras)

    def value(self, observation: Observations) -> torch.Tensor:
        self.most = max(self.most, len(observation["task"]))
        return super().value(observation)


def episodes() -> list[Stretch]:
    rng = np.random.default_rng(3)
    lengths = (2, 5, 1, 7)
    return [
        dataclasses.replace(
            stretch(rng, chunks=n, seed=i // 2, repeat=i % 2, terminated=False, truncated=True),
            prompt=f"do {i % 3}",
        )
        for i, n in enumerate(lengths)
    ]


def exact(parts: list[Stretch], network: PromptActor) -> list[Stretch]:
    """In double precision, and with probabilities near the network's own."""
    known = []
    for part in parts:
        wide = {
            key: array.astype(np.float64) if array.dtype == np.float32 else array
            for key, array in part.observation.items()
        }
        seen = Observations(
            {
                **{key: torch.from_numpy(array) for key, array in wide.items()},
                "prompt": torch.zeros(len(part), dtype=torch.int64),
            },
            (part.prompt,),
        )
        actions = torch.from_numpy(part.actions.astype(np.float64))
        found: Evaluated = network.evaluate(seen, actions, {})
        known.append(
            dataclasses.replace(
                part,
                observation=wide,
                actions=actions.numpy(),
                log_prob=found.log_prob.detach().numpy() + 0.05,
            )
        )
    return known


def make(algo: str, level: Any, micro_batch: int | None) -> tuple[Algorithm, Counting]:
    network = Counting(SHAPES, CONFIG).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.sin(torch.arange(parameter.numel())).view_as(parameter) * 0.3)
    how = RatioRule(level=level, correction="decoupled")
    shared = {"entropy": 0.01, "micro_batch": micro_batch}
    if algo == "ppo":
        return PPO(network, Keep(), PPOConfig(**shared), how, Ranks()), network
    reference = Counting(SHAPES, CONFIG).double()
    config = GRPOConfig(kl_weight=0.1, **shared)
    return GRPO(network, Keep(), config, how, Ranks(), reference), network


def gradients(learner: Algorithm, parts: list[Stretch]) -> Iterator[tuple[str, torch.Tensor]]:
    rows = learner.prepare(parts)
    measures = Measures(Ranks())
    found = learner.gradients(rows, measures)
    assert found is not None
    for name, tensors in found.items():
        for i, tensor in enumerate(tensors):
            if tensor is not None:
                yield f"{name} {i}", tensor
    for name, value in measures.result().items():
        yield name, torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
@pytest.mark.parametrize("level", ["action", "chunk"])
@pytest.mark.parametrize("micro_batch", [1, 4, 7, 15])
def test_accumulated_gradients_are_the_unsplit_ones(
    algo: str, level: str, micro_batch: int
) -> None:
    whole, network = make(algo, level, None)
    parts = exact(episodes(), network)
    wanted = dict(gradients(whole, parts))
    assert network.most == 15
    split, counted = make(algo, level, micro_batch)
    found = dict(gradients(split, parts))
    assert counted.most == micro_batch
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)
    assert any(value.abs().max() > 1e-3 for key, value in wanted.items() if "policy" in key)


def test_a_step_beyond_the_limit_is_undone_with_micro_batches_too() -> None:
    found = []
    for micro_batch in (None, 4):
        learner, network = make("ppo", "action", micro_batch)
        learner.config = dataclasses.replace(learner.config, target_kl=0.01)
        learner.optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        parts = exact(episodes(), network)
        told = learner.update(parts, version=1, rng=torch.Generator().manual_seed(0))
        assert told["policy_minibatches"] < told["minibatches"]
        found.append({**told, **{k: float(v.sum()) for k, v in network.state_dict().items()}})
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_training_in_half_precision_with_micro_batches_is_reproducible(tmp_path: Path) -> None:
    common = {"micro_batch": 3, "precision": "bf16", "steps": 80, "batch": 8, "epochs": 1}
    first, again = run(tmp_path, "first", **common), run(tmp_path, "again", **common)
    assert same_weights(first.run, again.run)
