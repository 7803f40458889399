"""Torch modules that know nothing of training are trained through a wrapper."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket import evaluate
from hocket.core.contracts.module import HasVelocity
from hocket.core.specs import ArraySpec
from hocket.errors import ConfigError, SpecMismatchError
from hocket.train.networks.actor import FlowActor
from hocket.train.networks.building import Description
from hocket.train.networks.contract import Observations, Shapes
from hocket.train.networks.policies import FlowConfig
from hocket.train.networks.sampling import CHAIN
from hocket.train.networks.wrapped import FlowChunk, GaussianChunk, WrappedConfig, wrap
from support.chunk_modules import Flow, Regressor
from train.test_training import Trained, run, success

SHAPES = Shapes(
    observations={"observation/state": ArraySpec(shape=(2,), dtype="<f4")},
    action_size=2,
    tasks=("point",),
)


def seen(rows: int = 5) -> Observations:
    state = torch.from_numpy(np.random.default_rng(1).normal(size=(rows, 2)).astype(np.float32))
    zeros = torch.zeros(rows, dtype=torch.int64)
    return Observations({"observation/state": state, "task": zeros, "prompt": zeros})


@pytest.mark.parametrize("module", [Regressor, Flow])
def test_what_was_sampled_is_as_likely_when_it_is_learnt_from(module: Any) -> None:
    network = wrap(module(), SHAPES, WrappedConfig())
    noise = torch.randn(5, network.noise_size, generator=torch.Generator().manual_seed(0))
    acted = network.act(seen(), noise, deterministic=False)
    again = network.evaluate(seen(), acted.actions, acted.extras)
    torch.testing.assert_close(again.log_prob, acted.log_prob)
    torch.testing.assert_close(again.value, acted.value)
    torch.testing.assert_close(network.value(seen()), acted.value)
    # The critic learns from the module's features, and leaves them alone.
    again.value.sum().backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in network.module.parameters())
    again.log_prob.sum().backward()
    assert all(parameter.grad is not None for parameter in network.module.parameters())


def test_the_first_weights_of_a_module_follow_the_seed_alone() -> None:
    def weights(seed: int) -> torch.Tensor:
        about = {"seed": seed, "settings": {}}
        name = "torch:support.chunk_modules:Drawn"
        network = Description(network=name, config=about, shapes=SHAPES, replan=None).build(name)
        return torch.nn.utils.parameters_to_vector(network.module.parameters())

    torch.manual_seed(secrets.randbits(32))
    first = weights(3)
    torch.rand(1)
    torch.testing.assert_close(weights(3), first, rtol=0, atol=0)
    assert not torch.equal(weights(4), first)


def test_the_spread_of_a_wrapped_module_is_told_in_units_of_half_of_each_range() -> None:
    shapes = dataclasses.replace(SHAPES, bounds=((-0.05, 0.05), (0.0, 800.0)))
    network = wrap(Regressor(), shapes, WrappedConfig(std=0.2))
    spreads = network.log_std.exp().detach()
    torch.testing.assert_close(spreads, torch.tensor([0.01, 80.0]).expand_as(spreads))


def test_a_wrapped_modules_likeliest_chunk_is_its_own() -> None:
    module = Regressor()
    network = wrap(module, SHAPES, WrappedConfig())
    assert isinstance(network, GaussianChunk)
    acted = network.act(seen(), torch.zeros(5, network.noise_size), deterministic=True)
    torch.testing.assert_close(acted.actions, module(seen()))


def test_a_wrapped_flow_is_hockets_own_flow() -> None:
    own = FlowActor(SHAPES, FlowConfig(chunk_length=4, hidden=(16,), denoising_steps=3))
    assert isinstance(own, HasVelocity)
    own.denoising_steps = 3
    network = wrap(own, SHAPES, WrappedConfig())
    assert isinstance(network, FlowChunk)
    noise = torch.randn(5, network.noise_size, generator=torch.Generator().manual_seed(0))
    ours = own.act(seen(), noise, deterministic=False)
    theirs = network.act(seen(), noise, deterministic=False)
    torch.testing.assert_close(theirs.log_prob, ours.log_prob)
    torch.testing.assert_close(theirs.extras[CHAIN], ours.extras[CHAIN])


POLICIES = [f"torch:support.chunk_modules:{name}" for name in ("Regressor", "Flow")]


def learn(tmp_path: Path, policy: str, **changes: Any) -> Trained:
    common = {"policy_config": {}, "std": 0.4, "reward": "env", "minibatch": 32, "eval_episodes": 5}
    return run(tmp_path, policy=policy, **{**common, **changes})


@pytest.mark.parametrize("policy", POLICIES)
def test_a_torch_module_is_trained_saved_and_evaluated(tmp_path: Path, policy: str) -> None:
    result = learn(tmp_path, policy, steps=200, eval_every=1000)
    report = evaluate(
        env="support.point_env:make",
        policy=str(result.run / "best"),
        policy_config={"network": policy},
        episodes=5,
        lanes=1,
    )
    assert report.overall.rate == pytest.approx(result.best)
    with pytest.raises(ConfigError, match=f"--policy.network {policy}"):
        evaluate(env="support.point_env:make", policy=str(result.run / "best"), episodes=1, lanes=1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_a_torch_module_learns(tmp_path: Path, policy: str) -> None:
    result = learn(tmp_path, policy, steps=8000, eval_every=1000, eval_episodes=10, stop_at=0.9)
    assert max(success(result)) >= 0.9


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no submodule 'nothing'"):
        wrap(Regressor(), SHAPES, WrappedConfig(critic_features="nothing"))
    other = Shapes(observations=SHAPES.observations, action_size=3, tasks=("point",))
    with pytest.raises(SpecMismatchError, match=r"\[1, T, 3\]"):
        wrap(Regressor(), other, WrappedConfig())
    picky = Regressor()
    picky.inputs = ("observation/other",)
    with pytest.raises(SpecMismatchError, match="observation/other"):
        wrap(picky, SHAPES, WrappedConfig())
