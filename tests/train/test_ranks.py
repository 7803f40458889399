"""Two ranks learn as one: summed gradients are those of a single process with all the data."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hocket.train.algorithms.grpo import GRPO
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.ranks import Measures, Ranks, local_device
from hocket.train.algorithms.ratios import RatioRule
from hocket.train.algorithms.stretches import Stretch, pad_stretches
from hocket.train.algorithms.update import Algorithm
from hocket.train.config import GRPOConfig, PPOConfig
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.policies import ActorConfig
from support.processes import DEADLINE_S
from support.stock_openpi import free_port
from support.trajectories import stretch
from train.test_collecting import SHAPES

TESTS = Path(__file__).parents[1]
ALGORITHMS = ("ppo", "grpo")


class Keep:
    """An optimizer that only keeps gradients."""

    def step(self) -> None: ...


def episodes() -> list[Stretch]:
    rng = np.random.default_rng(0)
    lengths = (2, 5, 1, 7)
    return [
        stretch(
            rng, chunks=n, seed=i // 2, repeat=i % 2, terminated=i % 2 == 0, truncated=i % 2 == 1
        )
        for i, n in enumerate(lengths)
    ]


def as_if_sampled(network: ChunkActor, parts: list[Stretch]) -> list[Stretch]:
    """With probabilities near the network's own, so that no ratio is clipped away."""
    known = []
    for part in parts:
        rows = pad_stretches([part]).rows[0]
        seen = network.evaluate(rows["observation"].to_dict(), rows["actions"], {})
        log_prob = seen.log_prob.detach().numpy() + 0.01
        known.append(dataclasses.replace(part, log_prob=log_prob))
    return known


def gradients(algo: str, parts: list[Stretch], ranks: Ranks) -> dict[str, torch.Tensor]:
    """Of one minibatch with everything in it."""
    network = ChunkActor(SHAPES, ActorConfig(chunk_length=4, hidden=(16,)))
    parts = as_if_sampled(network, parts)
    measures = Measures(ranks)
    how = RatioRule(level="chunk", correction="none")
    learner: Algorithm
    if algo == "ppo":
        learner = PPO(network, Keep(), PPOConfig(max_grad_norm=1e9), how, ranks)
    else:
        learner = GRPO(network, Keep(), GRPOConfig(max_grad_norm=1e9), how, ranks)
    rows = learner.prepare(parts)
    learner.descend(learner.gradients(rows, measures) or {}, measures)
    found = {k: p.grad for k, p in network.named_parameters() if p.grad is not None}
    return {**found, "kl": torch.tensor(measures.result()["kl"])}


def work(out: str) -> None:
    """One of two processes, each with half of the episodes, of different lengths, on a machine
    that says it has a GPU, which is not asked for."""
    torch.cuda.is_available = lambda: True
    ranks = Ranks.from_torchrun("cpu")
    parts = episodes()[ranks.rank * 2 :][:2]
    for algo in ALGORITHMS:
        found = gradients(algo, parts, ranks)
        np.savez(f"{out}/{algo}{ranks.rank}.npz", **{k: v.numpy() for k, v in found.items()})
    ranks.close()


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what both processes found, by algorithm and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    port = free_port()
    code = f"from train.test_ranks import work; work({str(folder)!r})"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)]),
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(DEADLINE_S) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_gradients_of_two_ranks_are_those_of_one_process(worked: Path, algo: str) -> None:
    wanted = gradients(algo, episodes(), Ranks())
    got = [np.load(worked / f"{algo}{rank}.npz") for rank in range(2)]
    for key, value in wanted.items():
        for one in got:
            np.testing.assert_allclose(one[key], value, rtol=1e-4, atol=1e-6)
    assert any(np.abs(one["actors.0.0.weight"]).max() > 1e-4 for one in got)


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_device("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [local_device(one) for one in ("cuda", "cuda:1", "cpu")] == ["cuda:3", "cuda:1", "cpu"]
