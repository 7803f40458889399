"""Large networks: built once in each process, frozen parts shared and saved once, tied weights, and
weights that lack a critic."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hocket import evaluate
from hocket.errors import ConfigError
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description, load_weights
from hocket.train.networks.contract import Observations, Shapes
from hocket.train.networks.memory import checkpoint_activations, twin
from support.prompted import PromptActor, PromptConfig
from train.test_collecting import SHAPES
from train.test_training import run

NAME = "train.test_frozen:Tied"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedConfig(PromptConfig):
    witness: str = ""


class Tied(PromptActor):
    """Has a large frozen part, two names for one layer, and a witness of being built."""

    Config: ClassVar = TiedConfig

    def __init__(self, shapes: Shapes, config: TiedConfig) -> None:
        super().__init__(shapes, config)
        self.frozen = nn.Linear(100, 100).requires_grad_(requires_grad=False)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.again = self.head
        if config.witness:
            with open(config.witness, "a") as file:
                file.write(f"{os.getpid()}\n")

    def _see(self, observation: Observations) -> torch.Tensor:
        seen = super()._see(observation)
        for block in self.blocks:
            seen = seen + block(seen)
        return seen + self.frozen.weight[0, 0]


def make(**changes: Any) -> Tied:
    return Tied(SHAPES, TiedConfig(**changes))


@pytest.mark.parametrize(
    ("mode", "algo"),
    [("sync", "grpo"), pytest.param("async", "grpo", marks=pytest.mark.slow)],
)
def test_a_process_builds_one_network(tmp_path: Path, mode: str, algo: str) -> None:
    witness = tmp_path / "witness"
    result = run(
        tmp_path,
        policy=NAME,
        policy_config={"witness": str(witness), "chunk_length": 4},
        mode=mode,
        algo=algo,
        kl_weight=0.1,
        lanes=1,
        batch=8,
        steps=150,
        eval_every=100,
        eval_episodes=2,
    )
    built = witness.read_text().split()
    assert len(built) == len(set(built)) == (2 if mode == "async" else 1)
    frozen = result.run / checkpoint.FROZEN
    assert set(load_file(frozen)) == {"frozen.weight", "frozen.bias"}
    folders = [*checkpoint.checkpoints(result.run), result.run / checkpoint.BEST]
    for folder in folders:
        assert (folder / checkpoint.FROZEN).stat().st_ino == frozen.stat().st_ino
        weights = load_file(folder / checkpoint.WEIGHTS)
        assert "head.weight" in weights
        assert not {key for key in weights if key.startswith(("frozen", "again"))}
    again = run(tmp_path, policy=NAME, policy_config={"chunk_length": 4}, resume=True, steps=150)
    assert again.complete
    report = evaluate(
        env="support.point_env:make",
        policy=str(result.run / "best"),
        policy_config={"network": NAME},
        episodes=2,
        lanes=1,
    )
    assert report.overall.rate == pytest.approx(result.best)


def test_copies_share_what_is_frozen_and_nothing_else() -> None:
    network = make()
    copied = twin(network, "cpu")
    assert copied.frozen.weight.data_ptr() == network.frozen.weight.data_ptr()
    assert copied.head.weight.data_ptr() != network.head.weight.data_ptr()
    assert copied.again is copied.head


def test_weights_without_a_critic_load_and_others_are_refused(tmp_path: Path) -> None:
    network = make(width=8)
    state = {k: v.clone() for k, v in network.state_dict().items() if not k.startswith("critic")}
    file = tmp_path / "own.safetensors"
    save_file(state, file)
    with torch.no_grad():
        network.trunk.weight.zero_()
    load_weights(network, file, may_be_fresh=True)
    assert torch.equal(network.trunk.weight, state["trunk.weight"])
    with pytest.raises(ConfigError, match=r"lack critic\.weight"):
        load_weights(network, file)
    save_file({k: v for k, v in state.items() if not k.startswith("trunk")}, file)
    with pytest.raises(ConfigError, match=r"lack trunk\.weight"):
        load_weights(network, file, may_be_fresh=True)
    save_file({**state, "other": torch.zeros(1)}, file)
    with pytest.raises(ConfigError, match="have other"):
        load_weights(network, file, may_be_fresh=True)


def test_tied_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    network = make()
    checkpoint.write_folder(tmp_path / "it", {checkpoint.WEIGHTS: network.state_dict()}, {})
    other = Description(network=NAME, config={}, shapes=SHAPES).build(NAME)
    with torch.no_grad():
        other.head.weight.add_(1)
    load_weights(other, tmp_path / "it" / checkpoint.WEIGHTS)
    assert torch.equal(other.head.weight, network.head.weight)


def test_activations_that_are_computed_again_give_the_same_gradients() -> None:
    network = make().double()
    seen = Observations(
        {
            "observation/state": torch.randn(3, 3, dtype=torch.float64),
            "task": torch.zeros(3, dtype=torch.int64),
            "prompt": torch.zeros(3, dtype=torch.int64),
        },
        ("go",),
    )
    actions = torch.randn(3, 2, 2, dtype=torch.float64)
    saving = twin(network, "cpu")
    checkpoint_activations(saving)
    found, kept = [], []
    for one in (network, twin(saving, "cpu")):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            loss = one.evaluate(seen, actions, {}).log_prob.sum()
        kept.append(sum(sizes))
        loss.backward()
        found.append({k: p.grad for k, p in one.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for key, plain in found[0].items():
        torch.testing.assert_close(plain, found[1][key])
    assert kept[1] < kept[0]
    with pytest.raises(ConfigError, match="--checkpoint-activations"):
        checkpoint_activations(PromptActor(SHAPES, PromptConfig()))
