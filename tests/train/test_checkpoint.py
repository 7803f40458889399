from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from hocket.core import plugins
from hocket.core.specs import ArraySpec
from hocket.errors import ConfigError, RunFolderError
from hocket.train.learner import checkpoint
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.building import NETWORKS, Description, describe
from hocket.train.networks.contract import BASE, Shapes
from hocket.train.networks.policies import ActorConfig
from train.test_collecting import SHAPES
from train.test_training import run, settings


class OwnActor(ChunkActor):
    """What a user might write."""


def save(folder: Path, version: int) -> None:
    checkpoint.save_checkpoint(
        folder,
        version,
        weights={"a": torch.full((3,), float(version))},
        optimizer={},
        statistics={},
        policy={},
        state={"version": version},
    )


def test_the_newest_whole_checkpoint_is_found_and_old_ones_go(tmp_path: Path) -> None:
    for version in range(6):
        save(tmp_path, version)
    broken = tmp_path / "checkpoints" / "00000009"
    broken.mkdir()
    assert checkpoint.latest(tmp_path).name == "00000005"
    assert len(checkpoint.checkpoints(tmp_path)) == 3


def test_a_checkpoint_that_was_being_written_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    draft = tmp_path / "checkpoints" / ".00000002.tmp"
    draft.mkdir()
    (draft / "state.json").write_text("{}")
    assert checkpoint.latest(tmp_path).name == "00000001"


def test_a_run_without_checkpoints_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no checkpoint"):
        checkpoint.latest(tmp_path)


def test_an_optimizer_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    def steps(network: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            sum((p**2).sum() for p in network.parameters()).backward()
            optimizer.step()

    torch.manual_seed(0)
    whole = torch.nn.Linear(3, 2)
    first = torch.optim.Adam(whole.parameters(), lr=0.1)
    steps(whole, first, 3)
    again = torch.nn.Linear(3, 2)
    again.load_state_dict(whole.state_dict())
    second = torch.optim.Adam(again.parameters(), lr=0.1)
    names = [name for name, _ in whole.named_parameters()]
    saved = checkpoint.optimizer_tensors(first, names)
    checkpoint.write_folder(tmp_path / "it", {checkpoint.OPTIMIZER: saved}, {})
    read = checkpoint.read_tensors(tmp_path / "it" / checkpoint.OPTIMIZER)
    checkpoint.load_optimizer(second, names, read)
    steps(whole, first, 3)
    steps(again, second, 3)
    assert torch.equal(whole.weight, again.weight)


def test_nothing_saved_is_a_pickle(tmp_path: Path) -> None:
    run(tmp_path, steps=200, eval_every=200, eval_episodes=2)
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"]
    kinds = {p.suffix for p in files if "tensorboard" not in p.parts}
    assert kinds <= {".json", ".jsonl", ".yaml", ".safetensors"}


SAVED = {
    "actor": "hocket.train.networks.actor:ChunkActor",
    "flow": "hocket.train.networks.actor:FlowActor",
    "residual": "hocket.train.networks.actor:ResidualActor",
}
"""What `policy.json` calls the networks."""
CORRECTING = dataclasses.replace(
    SHAPES, observations={**SHAPES.observations, BASE: ArraySpec(shape=(4, 2), dtype="float32")}
)


@pytest.mark.parametrize("kind", SAVED)
def test_networks_are_saved_under_the_names_of_their_classes(kind: str) -> None:
    base = {"policy": "zero", "residual": True, "policy_config": {"chunk_length": 4}}
    changes = base if kind == "residual" else {"policy": kind, "policy_config": {}}
    shapes = CORRECTING if kind == "residual" else SHAPES
    plain = describe(settings(**changes), shapes).to_plain()
    assert plain["network"] == SAVED[kind]
    noise = "hocket.train.networks.actor:NoiseActor"  # of --steer: tests/train/test_steering.py
    assert set(NETWORKS) == {*SAVED.values(), noise}


def test_a_checkpoint_says_how_the_pictures_were_rendered_that_it_learnt_from() -> None:
    env = {"render": "fast", "size": 84}
    made = describe(settings(env=("metaworld:reach-v3",), env_config=env), SHAPES).to_plain()
    assert made["env_config"] == env
    assert Description.from_plain(made).env_config == env


@pytest.mark.parametrize("kind", SAVED)
def test_a_policy_is_loaded_by_the_name_in_its_file(tmp_path: Path, kind: str) -> None:
    base = {"base": "zero", "base_config": {"chunk_length": 4}} if kind == "residual" else {}
    shapes = CORRECTING if kind == "residual" else SHAPES
    plain = {
        "network": SAVED[kind],
        "config": {"chunk_length": 4, "hidden": [8]},
        "shapes": shapes.to_plain(),
        "replan": None,
        **base,
    }
    network = Description.from_plain(plain).build()
    weights = {checkpoint.WEIGHTS: network.state_dict()}
    checkpoint.write_folder(tmp_path / "best", weights, {checkpoint.POLICY: plain})
    named = {"base": "zero"} if kind == "residual" else {}
    policy = plugins.build("policies", str(tmp_path / "best"), named)
    assert policy.spec.chunk_length == 4
    policy.close()


def test_a_users_class_is_imported_only_where_the_user_names_it(tmp_path: Path) -> None:
    name = "train.test_checkpoint:OwnActor"
    description = Description(
        network=name, config={"chunk_length": 2, "hidden": [8]}, shapes=SHAPES
    )
    network = description.build(name)
    checkpoint.write_folder(
        tmp_path / "best",
        {checkpoint.WEIGHTS: network.state_dict()},
        {checkpoint.POLICY: description.to_plain()},
    )
    with pytest.raises(ConfigError, match=r"--policy.network train.test_checkpoint:OwnActor"):
        plugins.build("policies", str(tmp_path / "best"))
    policy = plugins.build("policies", str(tmp_path / "best"), {"network": name})
    assert policy.spec.chunk_length == 2
    policy.close()


class NoActor(torch.nn.Module):
    """A module that lacks the contract."""

    Config = ActorConfig

    def __init__(self, shapes: Shapes, config: ActorConfig) -> None:
        super().__init__()


def test_a_class_that_cannot_be_trained_is_refused_by_name() -> None:
    name = "train.test_checkpoint:NoActor"
    description = Description(network=name, config={}, shapes=SHAPES)
    with pytest.raises(ConfigError, match="act is missing"):
        description.build(name)


def test_a_users_class_is_trained_from_its_weights(tmp_path: Path) -> None:
    config = ActorConfig(chunk_length=2, hidden=(8,))
    shapes = Shapes(
        observations={"observation/state": ArraySpec(shape=(2,), dtype="<f4")},
        action_size=2,
        tasks=("only",),
    )
    state = ChunkActor(shapes, config).state_dict()
    checkpoint.write_folder(tmp_path / "own", {"own.safetensors": state}, {})
    weights = tmp_path / "own" / "own.safetensors"
    result = run(
        tmp_path,
        policy="train.test_checkpoint:OwnActor",
        policy_config={"chunk_length": 2, "hidden": (8,)},
        weights=str(weights),
        steps=100,
    )
    saved = json.loads((checkpoint.latest(result.run) / "policy.json").read_text())
    assert saved["network"] == "train.test_checkpoint:OwnActor"
