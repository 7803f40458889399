from __future__ import annotations

import numpy as np
import pytest
import torch

from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ArraySpec
from hocket.train.collect.plan import EVALUATION, evaluated_as, holder_of
from hocket.train.collect.policy import LOG_PROB, SAMPLE, VERSION, CollectingPolicy
from hocket.train.learner.weights import WeightBlock
from hocket.train.networks.actor import ChunkActor, FlowActor
from hocket.train.networks.contract import TASK, Acted, Shapes, Tensors, published_tensors
from hocket.train.networks.memory import twin
from hocket.train.networks.policies import ActorConfig, FlowConfig

SHAPES = Shapes(
    observations={"observation/state": ArraySpec(shape=(3,), dtype="float32")},
    action_size=2,
    tasks=("reach", "push"),
)


def batch(*trials: Trial, pad: int = 0, chunk: int = 0) -> Batch:
    rows = tuple(
        Row(
            trial=trial,
            attempt=0,
            chunk=chunk,
            noise_seed=noise_seed(trial, chunk),
            prompt="",
            session=trial.id,
        )
        for trial in trials
    )
    states = [np.random.default_rng(t.seed).normal(size=3) for t in trials]
    states += states[-1:] * pad
    return Batch(
        arrays={"observation/state": np.stack(states).astype(np.float32)}, rows=rows, pad=pad
    )


def trial(seed: int, task: str = "reach", repeat: int = 0) -> Trial:
    return Trial(suite="toy", task=task, seed=seed, repeat=repeat)


def make(network: torch.nn.Module) -> tuple[CollectingPolicy, WeightBlock]:
    block = WeightBlock(published_tensors(network))
    block.publish(published_tensors(network), 0)
    policy = CollectingPolicy(
        twin(network, "cpu"), SHAPES, evaluated_as=evaluated_as, held_by=holder_of
    )
    policy.block = block
    return policy, block


def moved(network: torch.nn.Module, by: float) -> dict[str, torch.Tensor]:
    return {key: value + by for key, value in published_tensors(network).items()}


@pytest.mark.parametrize(
    "network",
    [
        ChunkActor(SHAPES, ActorConfig(chunk_length=4, hidden=(16,))),
        FlowActor(SHAPES, FlowConfig(chunk_length=4, hidden=(16,))),
    ],
)
def test_the_learner_agrees_with_what_the_collecting_side_says(network: torch.nn.Module) -> None:
    policy, _ = make(network)
    asked = batch(trial(1), trial(2, "push"), trial(3))
    extras = policy.infer(asked).extras
    observation = {
        "observation/state": torch.from_numpy(asked.arrays["observation/state"]),
        TASK: torch.tensor([0, 1, 0]),
    }
    rest = {key: torch.from_numpy(np.array(value)) for key, value in extras.items()}
    seen = network.evaluate(observation, rest[SAMPLE], rest)
    torch.testing.assert_close(seen.log_prob.detach(), rest[LOG_PROB], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen.value.detach(), rest["value"])


def test_a_flow_chains_probability_is_that_of_its_gaussian_steps() -> None:
    network = FlowActor(SHAPES, FlowConfig(chunk_length=2, hidden=(8,), denoising_steps=3))
    policy, _ = make(network)
    extras = policy.infer(batch(trial(1))).extras
    chain = torch.from_numpy(np.array(extras["chain"]))
    noise = np.random.Generator(np.random.Philox(key=noise_seed(trial(1), 0))).standard_normal(
        network.noise_size, np.float32
    )
    steps = torch.from_numpy(noise).view(4, 2, 2)
    torch.testing.assert_close(chain[0, 0], steps[0])
    # What each step added beyond its mean is its noise times the spread.
    spread = network.log_std.exp().detach()
    normal = torch.distributions.Normal(0.0, 1.0)
    expected = sum((normal.log_prob(steps[i + 1]) - spread[i].log()).sum(-1) for i in range(3))
    torch.testing.assert_close(
        torch.from_numpy(extras[LOG_PROB][0]), expected, atol=1e-4, rtol=1e-4
    )


def test_noise_belongs_to_the_row_and_not_to_its_batch() -> None:
    policy, _ = make(ChunkActor(SHAPES, ActorConfig(chunk_length=4)))
    alone = policy.infer(batch(trial(5), pad=3)).values[0]
    among = policy.infer(batch(trial(4), trial(5), trial(6, "push"), pad=1)).values[1]
    np.testing.assert_array_equal(alone, among)
    other = policy.infer(batch(trial(5, repeat=1), pad=3)).values[0]
    assert not np.array_equal(alone, other)


def test_new_weights_are_taken_up_between_calls() -> None:
    network = ChunkActor(SHAPES, ActorConfig(chunk_length=4))
    policy, block = make(network)
    first = policy.infer(batch(trial(1)))
    block.publish(moved(network, 0.1), 1)
    second = policy.infer(batch(trial(1)))
    assert (first.extras[VERSION][0], second.extras[VERSION][0]) == (0, 1)
    assert not np.array_equal(first.values, second.values)


class PublishingActor(ChunkActor):
    """Publishes new weights in the middle of every `act`, as a learner might."""

    block: WeightBlock | None = None
    published = 0

    def act(self, observation: Tensors, noise: torch.Tensor, *, deterministic: bool) -> Acted:
        before = super().act(observation, noise, deterministic=deterministic)
        if PublishingActor.block is not None:
            PublishingActor.published += 1
            PublishingActor.block.publish(moved(self, 0.5), PublishingActor.published)
        after = super().act(observation, noise, deterministic=deterministic)
        torch.testing.assert_close(before.actions, after.actions, rtol=0, atol=0)
        return after


def test_weights_published_while_inferring_do_not_touch_the_call() -> None:
    policy, block = make(PublishingActor(SHAPES, ActorConfig(chunk_length=4)))
    PublishingActor.block, PublishingActor.published = block, 0
    for expected in range(3):
        assert policy.infer(batch(trial(1))).extras[VERSION][0] == expected


def test_an_evaluation_is_held_to_one_version_while_training_rows_move_on() -> None:
    network = ChunkActor(SHAPES, ActorConfig(chunk_length=4))
    policy, block = make(network)
    measured, trained = trial(1, repeat=EVALUATION), trial(2)
    first = policy.infer(batch(measured, trained))
    block.publish(moved(network, 0.1), 1)
    second = policy.infer(batch(measured, trained))
    assert second.extras[VERSION].tolist() == [0, 1]
    np.testing.assert_array_equal(first.values[0], second.values[0])
    version, weights = policy.held_weights(holder_of(measured))
    assert version == 0
    torch.testing.assert_close(weights["log_std"], network.log_std.detach())
    policy.release(holder_of(measured))
    assert policy.infer(batch(measured)).extras[VERSION][0] == 1


def test_an_evaluation_is_deterministic() -> None:
    network = ChunkActor(SHAPES, ActorConfig(chunk_length=4))
    policy, _ = make(network)
    one = policy.infer(batch(trial(1, repeat=EVALUATION))).values
    other = policy.infer(batch(trial(1, repeat=EVALUATION), chunk=3)).values
    np.testing.assert_array_equal(one, other)
