"""What counts of a flow's inner steps: the noise and the bias of a policy gradient, with `--inner
executed` and `--inner all`, on a flow whose executed actions should be small.

    python benchmarks/training/flow_terms.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import tyro
from torch import nn

from hocket.core.specs import ArraySpec
from hocket.train.networks.contract import Observations, Shapes
from hocket.train.networks.sampling import CHAIN, FlowNetwork
from hocket.train.networks.wrapped import WrappedConfig, wrap

LENGTH, FLOWING, REAL, STEPS, EXECUTED = 12, 8, 3, 4, 4
SHAPES = Shapes(
    observations={"observation/state": ArraySpec(shape=(4,), dtype="<f4")},
    action_size=REAL,
    tasks=("reach",),
)


class Field(nn.Module):  # type: ignore[misc]
    """A velocity in which every number of a chunk bears a little upon every other."""

    chunk_length, flow_size, real_size, denoising_steps = LENGTH, FLOWING, REAL, STEPS

    def __init__(self) -> None:
        super().__init__()
        numbers = LENGTH * FLOWING
        self.first, self.last = nn.Linear(numbers + 5, 16), nn.Linear(16, numbers)

    def velocity(self, features: Observations, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        seen = torch.cat((x_t.flatten(1), features["observation/state"], t[:, None]), -1)
        return self.last(torch.tanh(self.first(seen))).view(x_t.shape) - 0.5 * x_t

    def decode(self, end: torch.Tensor) -> torch.Tensor:
        return end[..., :REAL]

    def code(self, actions: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(actions, (0, FLOWING - REAL))


@dataclass(frozen=True, kw_only=True)
class Config:
    """How much is run."""

    rows: int = 16_384
    """Chunks that are sampled."""
    part: int = 64
    """Chunks of one step, whose gradients' noise is told."""
    move: float = 0.01
    """Spread of the change to each weight, after which divergence is told."""


def gradients(network: FlowNetwork, seen: Observations, acted, part: int) -> torch.Tensor:
    """The policy gradient of each part of the rows, `[parts, parameters]`."""
    reward = -acted.actions[:, :EXECUTED].square().sum((1, 2))
    advantage = (reward - reward.mean()) / reward.std()
    found = []
    for some in torch.arange(len(reward)).split(part):
        told = network.evaluate(
            Observations({key: tensor[some] for key, tensor in seen.items()}),
            acted.actions[some],
            {CHAIN: acted.extras[CHAIN][some]},
        ).log_prob[:, :EXECUTED]
        loss = (told.sum(-1) * advantage[some]).mean()
        grads = torch.autograd.grad(loss, list(network.module.parameters()))
        found.append(torch.cat([one.flatten() for one in grads]))
    return torch.stack(found)


def halves(parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two means of the same gradient whose errors have nothing in common."""
    return parts[::2].mean(0), parts[1::2].mean(0)


def main(config: Config) -> None:
    torch.manual_seed(0)
    print(f"load {os.getloadavg()[0]:.1f}; chunks of {LENGTH} x {FLOWING}, {STEPS} steps, of which")
    print(f"{EXECUTED} actions of {REAL} numbers count; {config.rows} chunks, {config.part} a step")
    module = Field()
    zeros = torch.zeros(config.rows, dtype=torch.int64)
    state = torch.randn(config.rows, 4)
    seen = Observations({"observation/state": state, "task": zeros, "prompt": zeros})
    networks = {
        inner: wrap(module, SHAPES, WrappedConfig(inner=inner)) for inner in ("all", "executed")
    }
    with torch.no_grad():
        noise = torch.randn(config.rows, networks["all"].noise_size)
        acted = networks["all"].act(seen, noise, deterministic=False)
    found = {name: gradients(one, seen, acted, config.part) for name, one in networks.items()}
    exact = halves(found["all"])
    length = (exact[0] @ exact[1]).sqrt()
    terms = {
        "all": (STEPS - 1) * LENGTH * FLOWING + EXECUTED * REAL,
        "executed": STEPS * EXECUTED * REAL,
    }
    moved = [config.move * torch.randn_like(one) for one in module.parameters()]
    print("inner     terms  noise of a step  its gradient  cosine to all's  KL  clipped")
    for name, network in networks.items():
        mine = halves(found[name])
        mean = found[name].mean(0)
        noise_of = (found[name] - mean).square().sum(1).mean().sqrt()
        size = (mine[0] @ mine[1]).clamp(min=0).sqrt()
        cosine = (mine[0] @ exact[1] + mine[1] @ exact[0]) / (2 * size * length)
        with torch.no_grad():
            before = network.evaluate(seen, acted.actions, acted.extras).log_prob
            for parameter, by in zip(module.parameters(), moved, strict=True):
                parameter.add_(by)
            after = network.evaluate(seen, acted.actions, acted.extras).log_prob
            for parameter, by in zip(module.parameters(), moved, strict=True):
                parameter.sub_(by)
        log = (after - before)[:, :EXECUTED].sum(-1)
        kl = (log.exp() - 1 - log).mean()
        clipped = ((log.exp() - 1).abs() > 0.2).float().mean()
        print(
            f"{name:9} {terms[name]:5} {noise_of:16.2f} {size:13.3f} {cosine:16.3f} {kl:5.3f} "
            f"{clipped:7.1%}"
        )


if __name__ == "__main__":
    main(tyro.cli(Config))
