"""One update of the weights: what decides how far the policy and the critic move."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from hocket.train.algorithms.gradients import clipped
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.ratios import RatioRule, compare, kl_estimate
from hocket.train.algorithms.stretches import Stretch
from hocket.train.algorithms.update import Algorithm, StepShare
from hocket.train.config import PPOConfig
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.policies import ActorConfig
from support.trajectories import stretch
from train.test_collecting import SHAPES
from train.test_ranks import as_if_sampled

HOW = RatioRule(level="action", correction="decoupled")


def actor(**changes: Any) -> ChunkActor:
    return ChunkActor(SHAPES, ActorConfig(chunk_length=4, hidden=(16,), **changes))


def episodes(network: ChunkActor, count: int = 8, chunks: int = 5) -> list[Stretch]:
    rng = np.random.default_rng(0)
    return as_if_sampled(network, [stretch(rng, chunks=chunks, seed=i) for i in range(count)])


def improve(
    network: ChunkActor, parts: list[Stretch], *, lr: float = 1e-3, version: int = 1, **changes: Any
) -> dict[str, float]:
    return algorithm(network, lr=lr, **changes).update(
        parts, version=version, rng=torch.Generator().manual_seed(0)
    )


def algorithm(network: ChunkActor, *, lr: float = 1e-3, **changes: Any) -> Algorithm:
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    return PPO(network, optimizer, PPOConfig(lr=lr, **changes), HOW, Ranks())


def policy_of(network: ChunkActor) -> dict[str, torch.Tensor]:
    state = network.state_dict()
    return {k: v.clone() for k, v in state.items() if k.startswith(("actors", "log_std"))}


def critic_of(network: ChunkActor) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in network.state_dict().items() if k.startswith("critics.0")}


def is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


def test_a_large_loss_of_the_critic_does_not_shrink_the_policys_steps() -> None:
    found = []
    for weight in (0.5, 5e5):
        network = actor()
        improve(network, episodes(network), value_weight=weight)
        found.append(policy_of(network))
    assert is_same(*found)


def test_steps_for_each_chunk_do_not_depend_on_how_long_episodes_are() -> None:
    network = actor()
    short = improve(network, episodes(network, count=32, chunks=4), lr=0.0)
    long = improve(network, episodes(network, count=4, chunks=32), lr=0.0)
    longer = improve(network, episodes(network, count=4, chunks=64), lr=0.0)
    assert short["minibatches"] == long["minibatches"] == longer["minibatches"] / 2


@pytest.mark.parametrize("chunks", [1, 3])
def test_fewer_chunks_than_minibatches_are_learnt_from_one_by_one(chunks: int) -> None:
    network = actor()
    found = improve(network, episodes(network, count=1, chunks=chunks), epochs=2, minibatch=1)
    assert all(np.isfinite(value) for value in found.values())
    assert all(parameter.isfinite().all() for parameter in network.parameters())
    assert found["minibatches"] == 2 * chunks


def test_a_policy_that_moved_too_far_stops_and_the_critic_goes_on() -> None:
    network = actor()
    parts = episodes(network)
    found = improve(network, parts, lr=0.03, target_kl=0.01)
    assert found["policy_minibatches"] < found["minibatches"] / 2
    assert found["value_minibatches"] == found["minibatches"]
    # As far as without any policy to hold it back.
    alone = actor()
    improve(alone, parts, lr=0.03, version=0)
    one, other = critic_of(network), critic_of(alone)
    for key in one:
        torch.testing.assert_close(one[key], other[key])


def test_a_step_that_overshoots_is_undone() -> None:
    network = actor()
    parts, before = episodes(network), policy_of(network)
    found = improve(network, parts, lr=10.0, target_kl=0.01)
    assert found["policy_minibatches"] == 0
    assert is_same(before, policy_of(network))
    assert found["pace"] < 1.0


def test_a_stopped_update_makes_the_next_ones_slower_until_all_their_minibatches_run() -> None:
    network = actor()
    learner = algorithm(network, lr=0.03, target_kl=0.05)
    rng = torch.Generator().manual_seed(0)
    shares = []
    for version in range(1, 12):
        found = learner.update(episodes(network), version=version, rng=rng)
        shares.append(found["policy_minibatches"] / found["minibatches"])
    assert shares[0] < 0.5
    assert max(shares) == 1.0
    assert 0.0 < learner.pace.share < 1.0


def test_the_pace_follows_how_far_updates_move_the_policy_up_and_down() -> None:
    pace = StepShare()
    pace.adapt(0, 24, 0.0)
    assert pace.share == 0.25
    for _ in range(20):
        pace.adapt(24, 24, 0.01)
    assert 1.0 < pace.share <= 10.0
    fast = pace.share
    pace.adapt(24, 24, 0.15)
    assert pace.share == fast
    pace.adapt(24, 24, 0.9)
    assert pace.share < fast


def test_a_policy_makes_larger_steps_until_an_update_moves_it_as_far_as_it_should() -> None:
    network = actor()
    learner = algorithm(network, lr=1e-4, target_kl=0.2)
    rng = torch.Generator().manual_seed(0)
    parts = episodes(network)
    found = [learner.update(parts, version=version, rng=rng) for version in range(1, 14)]
    assert found[-1]["pace"] > 1.0
    assert found[-1]["kl"] > 4 * found[0]["kl"]


def test_a_critic_with_a_rate_of_its_own_moves_that_much_further() -> None:
    parts, moved = episodes(actor()), []
    for rate in (None, 3e-3):
        network = actor()
        before = critic_of(network)
        # One step, whose size is the learning rate's.
        improve(network, parts, lr=1e-3, critic_lr=rate, version=0, epochs=1, minibatch=1000)
        after = critic_of(network)
        moved.append(torch.cat([(after[key] - before[key]).flatten() for key in before]))
        assert is_same(policy_of(network), policy_of(actor()))
    torch.testing.assert_close(moved[1], 3 * moved[0], rtol=1e-3, atol=1e-6)


def test_a_critic_that_learns_alone_leaves_the_policy_as_it_is() -> None:
    shapes = dataclasses.replace(SHAPES, cameras=("camera",))
    spec = dataclasses.replace(SHAPES.observations["observation/state"], shape=(8, 8, 3))
    shapes = dataclasses.replace(shapes, observations={**shapes.observations, "camera": spec})
    network = ChunkActor(shapes, ActorConfig(chunk_length=4, hidden=(16,), images=True))
    rng = np.random.default_rng(0)
    parts = []
    for i in range(8):
        one = stretch(rng, seed=i)
        images = rng.integers(0, 255, (len(one), 8, 8, 3)).astype(np.uint8)
        seen = {**one.observation, "camera": images}
        parts.append(dataclasses.replace(one, observation=seen))
    before = {k: v.clone() for k, v in network.state_dict().items()}
    improve(network, parts, version=0)
    after = network.state_dict()
    # The encoder of images is the policy's too.
    changed = {key.split(".")[0] for key in after if not torch.equal(after[key], before[key])}
    assert changed == {"critics"}


def test_no_weight_of_stale_data_outweighs_a_minibatch() -> None:
    ratio = compare(
        new=torch.tensor([[60.0]]),
        start=torch.tensor([[50.0]]),
        behaviour=torch.tensor([[-50.0]]),
        mask=torch.ones(1, 1, dtype=torch.bool),
        how=RatioRule(level="chunk", correction="decoupled"),
    )
    assert ratio.weight.item() <= 10.001


def test_divergence_of_what_is_far_away_is_finite_and_pulls_back() -> None:
    apart = torch.tensor([0.5, 5.0, 200.0], requires_grad=True)
    found = kl_estimate(apart)
    found.sum().backward()
    assert found.isfinite().all()
    assert found[2] > found[1] > found[0] > 0
    assert apart.grad is not None
    assert (apart.grad > 0).all()
    assert apart.grad.isfinite().all()
    torch.testing.assert_close(found[0], apart[0].exp() - 1 - apart[0])


def test_gradients_lie_as_their_parameters_do() -> None:
    """A fused step on a GPU refuses others, and those of convolutions over pictures are others."""
    weight = torch.zeros(2, 3, 4, 4)
    gradient = torch.randn(2, 4, 4, 3).permute(0, 3, 1, 2)
    assert gradient.stride() != weight.stride()
    (found,), _ = clipped([gradient], [weight], Ranks(), 1e9)
    assert found is not None
    assert found.stride() == weight.stride()
    assert torch.equal(found, gradient)
