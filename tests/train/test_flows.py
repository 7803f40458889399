"""How chains of a flow are sampled, what of them is learnt from, and what cloning a flow fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.core.specs import ArraySpec
from hocket.errors import UsageError
from hocket.train.algorithms.cloning import cloning_loss
from hocket.train.config import TrainConfig
from hocket.train.data.windows import Window
from hocket.train.networks.actor import FlowActor
from hocket.train.networks.building import describe
from hocket.train.networks.contract import Acted, Observations, Shapes
from hocket.train.networks.policies import FlowConfig
from hocket.train.networks.sampling import CHAIN, NOISY
from hocket.train.networks.wrapped import FlowChunk, WrappedConfig, wrap

SHAPES = Shapes(
    observations={"observation/state": ArraySpec(shape=(3,), dtype="<f8")},
    action_size=2,
    tasks=("reach",),
)
ROWS, STEPS = 64, 3


class Padded(nn.Module):  # type: ignore[misc]
    """Flows in five numbers an action, two of which are real."""

    chunk_length, flow_size, real_size, denoising_steps = 4, 5, 2, STEPS

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Linear(3 + 20 + 1, 20)
        self.asked = 0

    def velocity(self, features: Any, x_t: Tensor, t: Tensor) -> Tensor:
        self.asked += 1
        seen = features["observation/state"].float()
        return self.field(torch.cat((seen, x_t.flatten(1), t[:, None]), -1)).view(x_t.shape)

    def decode(self, end: Tensor) -> Tensor:
        return end[..., :2]

    def code(self, actions: Tensor) -> Tensor:
        return nn.functional.pad(actions, (0, 3))

    def times(self, drawn: Tensor) -> Tensor:
        return torch.special.ndtr(drawn) ** 3


def seen(rows: int = ROWS) -> Observations:
    drawn = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)).double()
    zeros = torch.zeros(rows, dtype=torch.int64)
    return Observations({"observation/state": drawn, "task": zeros, "prompt": zeros})


def padded(**settings: Any) -> FlowChunk:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = wrap(Padded(), SHAPES, WrappedConfig(**settings))
    assert isinstance(network, FlowChunk)
    return network


def sampled(network: Any, seed: int = 0, *, deterministic: bool = False) -> Acted:
    noise = torch.randn(ROWS, network.noise_size, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        acted: Acted = network.act(seen(), noise, deterministic=deterministic)
    return acted


@pytest.mark.parametrize("spread", ["step", "observation"])
@pytest.mark.parametrize("inner", ["executed", "all"])
@pytest.mark.parametrize("noise_at", ["all", "one"])
def test_what_was_sampled_is_as_likely_when_it_is_learnt_from(
    noise_at: str, inner: str, spread: str
) -> None:
    network = padded(noise_at=noise_at, inner=inner, spread=spread)
    acted = sampled(network)
    found = network.evaluate(seen(), acted.actions, acted.extras)
    torch.testing.assert_close(found.log_prob, acted.log_prob, atol=1e-4, rtol=1e-4)
    found.log_prob.sum().backward()
    for parameter in (*network.module.parameters(), network.log_std):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
    if network.spreads is not None:
        assert network.spreads.weight.grad.abs().sum() > 0


def test_a_spread_for_an_observation_stays_within_three_times_that_of_its_step() -> None:
    network = padded(spread="observation", std=0.2)
    with torch.no_grad():
        network.spreads.weight.fill_(1e3)
    _, _, log_std = network._look(seen())
    spreads = log_std.exp()
    assert spreads.min() >= 0.2 / 3 * 0.999
    assert spreads.max() <= 0.2 * 3 * 1.001
    assert spreads.std() > 0


def test_with_noise_at_one_step_each_row_is_noisy_at_its_own_and_an_update_runs_that_alone() -> (
    None
):
    network = padded(noise_at="one")
    acted = sampled(network)
    noisy = acted.extras[NOISY]
    counts = torch.bincount(noisy, minlength=STEPS)
    assert len(counts) == STEPS
    assert counts.min() > ROWS / STEPS / 3
    still = sampled(network, deterministic=True).actions
    assert not torch.equal(acted.actions, still)
    network.module.asked = 0
    network.evaluate(seen(), acted.actions, acted.extras)
    assert network.module.asked == 1
    # Taking the flow on from the end of the noisy step, without noise, leads to what was done.
    x = acted.extras[CHAIN][:, 1]
    for step in range(STEPS):
        at = torch.full((ROWS,), step)
        with torch.no_grad():
            on = network._next_mean(seen(), x, at)
        x = torch.where((noisy < step)[:, None, None], on, x)
    torch.testing.assert_close(network._decoded(x), acted.actions)


def test_padding_and_what_was_not_executed_of_the_last_step_count_for_nothing() -> None:
    for inner in ("executed", "all"):
        network = padded(inner=inner)
        acted = sampled(network)
        moved = acted.extras[CHAIN].clone()
        moved[:, -1, :, 2:] += 1.0  # padding
        moved[:, -1, 2:, :] += 1.0  # actions that were not executed
        with torch.no_grad():
            before = network.evaluate(seen(), acted.actions, acted.extras).log_prob[:, :2].sum(1)
            after = network.evaluate(seen(), acted.actions, {CHAIN: moved}).log_prob[:, :2].sum(1)
        torch.testing.assert_close(before, after)


def test_what_counts_of_inner_steps_is_what_was_asked_for() -> None:
    some, whole = padded(inner="executed"), padded(inner="all")
    acted = sampled(some)
    with torch.no_grad():
        few = some.evaluate(seen(), acted.actions, acted.extras).log_prob[:, :1].sum(1)
        many = whole.evaluate(seen(), acted.actions, acted.extras).log_prob[:, :1].sum(1)
        steps = [
            acted.extras[CHAIN][:, k + 1]
            - some._next_mean(seen(), acted.extras[CHAIN][:, k], torch.full((ROWS,), k))
            for k in range(STEPS)
        ]
    std = some.log_std.exp().detach()
    told = [torch.distributions.Normal(0.0, std[k]).log_prob(off) for k, off in enumerate(steps)]
    last = told[-1][:, :1, :2].sum((1, 2))
    torch.testing.assert_close(few, sum(one[:, :1, :2].sum((1, 2)) for one in told[:-1]) + last)
    torch.testing.assert_close(many, sum(one.sum((1, 2)) for one in told[:-1]) + last)


def test_an_evaluated_flow_starts_from_noise_and_adds_none() -> None:
    network = padded()
    one, other = (sampled(network, seed, deterministic=True) for seed in (0, 1))
    assert not torch.equal(one.actions, other.actions)
    assert one.extras == {}
    noise = torch.randn(ROWS, network.noise_size, generator=torch.Generator().manual_seed(0))
    noise[:, 20:] = 5.0
    with torch.no_grad():
        again = network.act(seen(), noise, deterministic=True)
    assert torch.equal(again.actions, one.actions)


def test_cloning_draws_times_as_the_module_says_and_counts_real_numbers_alone() -> None:
    network = padded()
    drawn = torch.randn(4000, generator=torch.Generator().manual_seed(2))
    assert network.times(drawn).mean().item() == pytest.approx(0.25, abs=0.02)
    actions, mask = torch.rand(2, 4, 2), torch.ones(2, 4, dtype=torch.bool)
    noise = torch.randn(2, 21, generator=torch.Generator().manual_seed(3))
    window = Window(observation=seen(2), actions=actions, mask=mask)
    start, time = noise[:, :20].view(2, 4, 5), network.times(noise[:, 20])
    end = network.module.code(actions)
    with torch.no_grad():
        x = start + time[:, None, None] * (end - start)
        off = network.module.velocity(seen(2), x, time) - (end - start)
        wanted = (off[..., :2] ** 2).mean(-1).sum()
        torch.testing.assert_close(cloning_loss(network, window, noise), wanted)


def test_settings_of_flows_are_refused_where_there_is_none() -> None:
    config = TrainConfig(env=("gym:Pendulum-v1",), policy="actor", noise_at="one")
    with pytest.raises(UsageError, match="--noise-at is of flows, and policy 'actor' is none"):
        describe(config, SHAPES)
    flow = describe(replace(config, policy="flow", inner="all"), SHAPES)
    assert (flow.config["noise_at"], flow.config["inner"]) == ("one", "all")
    built = flow.build()
    assert isinstance(built, FlowActor)
    assert built.noise_size == 2 * 8 * 2 + 1


def test_a_flow_of_one_noisy_step_has_the_entropy_of_that_step() -> None:
    config = FlowConfig(chunk_length=2, hidden=(8,), noise_at="one", std=0.1)
    network = FlowActor(SHAPES, config)
    acted = sampled(network)
    found = network.evaluate(seen(), acted.actions, acted.extras)
    each = 2 * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(0.1))
    torch.testing.assert_close(found.entropy, torch.full((ROWS, 2), each))
